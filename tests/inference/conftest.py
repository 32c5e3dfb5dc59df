import pytest
from folder_runs import write_images
from toolbox_models import CONFIGS, write_model

from cpvt_backbones.inference import Inferencer, ToolboxPredictor


@pytest.fixture(scope='session', params=CONFIGS)
def model(request, tmp_path_factory):
    """Config and checkpoint of a tiny model of each toolbox."""
    pytest.importorskip(request.param)
    return write_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope='session')
def predictor(model):
    cfg, checkpoint = model
    return ToolboxPredictor(cfg=cfg, checkpoint=checkpoint, device='cpu')


@pytest.fixture
def forwards(predictor):
    """Shapes of the batches that the model's backbone sees."""
    shapes = []
    hook = predictor.model.backbone.register_forward_pre_hook(
        lambda _, inputs: shapes.append(tuple(inputs[0].shape))
    )
    yield shapes
    hook.remove()


@pytest.fixture
def inferencer(predictor):
    return Inferencer(predictor=predictor)


@pytest.fixture
def folder(tmp_path):
    """Six different images, of two sizes."""
    return write_images(tmp_path / 'images')


@pytest.fixture
def out(tmp_path):
    return tmp_path / 'out'
