"""Name, dependencies and contents of the package; tools/setup_env.sh makes a whole environment."""

import runpy
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
README = ROOT / 'README.md'

# The package needs torch and mmengine; the toolboxes are extras, pinned to the versions the tests
# run with.
#
# `mmengine` is named by its maintained fork because the original no longer works with a current
# torch (its checkpoint loader fails from torch 2.6 on). Both install the same modules, so only one
# of them can be there: whoever stays with the originals (mmcv 2.1, mmdet 3.3, mmseg 1.2, mmpretrain
# 1.2) installs this package with
#     pip install safetensors filelock && pip install --no-deps .
MMCV = ['torchvision', 'onedl-mmcv==2.3.6']
EXTRAS = {
    'det': [*MMCV, 'onedl-mmdetection==3.5.1'],
    'seg': [*MMCV, 'onedl-mmsegmentation==1.4.2'],
    # timm provides the teachers of the distillation recipes.
    'cls': [
        *MMCV,
        'onedl-mmpretrain==1.3.6',
        'timm>=1.0.3',
    ],
    'infer': ['shapely>=2', 'rich', 'pycocotools'],
    'large': ['rasterio>=1.3'],  # images read by windows
    'analysis': ['matplotlib', 'rich'],
    'export': ['onnx', 'onnxscript', 'onnxruntime', 'rich'],
    'openvino': ['openvino>=2026.3'],  # the first that reads com.microsoft.MultiHeadAttention
}
EXTRAS['all'] = sorted({need for needs in EXTRAS.values() for need in needs})
# demo/app.py, of a clone; scikit-image and scikit-learn have the photographs of its examples.
EXTRAS['app'] = [*EXTRAS['all'], 'gradio>=6', 'scikit-image', 'scikit-learn']
# For `make test-app`, which uses the system's browser.
EXTRAS['browser'] = [
    'playwright',
    'axe-playwright-python',
]
# make docs. The last mkdocstrings for Python 3.10 lacks the argument `md` that Highlight of newer
# pymdown-extensions requires.
EXTRAS['docs'] = [
    'mkdocs<2',
    'mkdocs-material',
    'mkdocstrings-python',
    'pymdown-extensions<12.1; python_version < "3.11"',
]
# Checks, and what benchmarks/, projects/ and demo/ need: none of them is installed.
# setuptools: the tests build the wheel, for which older ones need `wheel`.
EXTRAS['dev'] = [
    'setuptools>=80,<82',
    'pytest',
    'pytest-xdist',
    'pytest-timeout',
    'hypothesis',
    'ruff',
    'mypy',
    'import-linter',
]
EXTRAS['dev'] += [
    'pandas',
    'tabulate',
    'scikit-image',
    'scikit-learn',
    'scipy',
    'tensorboard',
    'gradio>=6',
    'timm>=1.0.3',
]
EXTRAS['dev'] += [
    need for name in ('infer', 'large', 'analysis', 'export') for need in EXTRAS[name]
]


class BuildWithConfigs(build_py):
    """Install configs, tools and the model index where mim and ``_base_ = 'cpvt_backbones::...'``
    look for them.
    """

    EXTRA = ('configs', 'tools', 'model-index.yml')
    # Scripts that set up a clone.
    LEFT_OUT = ('__pycache__', 'setup_env.sh', 'compile_operators.sh')

    def run(self) -> None:
        super().run()
        if getattr(self, 'editable_mode', False):
            target = ROOT / 'cpvt_backbones' / '.mim'
            target.mkdir(exist_ok=True)
            for name in self.EXTRA:
                link = target / name
                if not link.exists():
                    link.unlink(missing_ok=True)
                    link.symlink_to(Path('..', '..', name))
            return
        target = Path(self.build_lib) / 'cpvt_backbones' / '.mim'
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in self.EXTRA:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source, target / name, ignore=shutil.ignore_patterns(*self.LEFT_OUT)
                )
            else:
                shutil.copy2(source, target / name)


setup(
    name='cpvt_backbones',
    version=runpy.run_path(str(ROOT / 'cpvt_backbones' / 'version.py'))['__version__'],
    description=(
        'CPVT and PEG: vision transformer backbones for images of any size, in mmdet, mmseg and'
        ' mmpretrain'
    ),
    long_description=README.read_text(encoding='utf-8') if README.exists() else '',
    long_description_content_type='text/markdown',
    author='cpvt_backbones contributors',
    # Three files of weights have data whose terms exclude commercial use; their cards say so.
    license='Apache-2.0 (code); weights: see cpvt_backbones/weights/*.md',
    classifiers=[
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
    cmdclass=dict(build_py=BuildWithConfigs),
    packages=find_packages(include=['cpvt', 'cpvt_backbones', 'cpvt_backbones.*']),
    package_data={
        'cpvt': ['py.typed'],
        'cpvt_backbones': ['py.typed'],
        'cpvt_backbones.weights': ['*.json', '*.md', '*.safetensors'],
    },
    entry_points={'console_scripts': ['cpvt = cpvt.__main__:main']},
    python_requires='>=3.10',
    # mmengine imports cv2 and its fork does not say so.
    install_requires=[
        'torch>=2.4',
        'onedl-mmengine>=0.10.12',
        'opencv-python-headless',
        'safetensors',
        'filelock',
    ],
    extras_require=EXTRAS,
)
