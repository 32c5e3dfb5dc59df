"""Layer-wise learning rates for models whose backbone has ``get_layer_depth``."""

from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from cpvt_backbones.checks import check, is_number
from cpvt_backbones.errors import InputError

_DECAY = 'layer_decay_rate'


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning rate decay: the rates shrink from the head towards the patch embedding.

    A parameter of a backbone with the method ``get_layer_depth`` gets the learning rate
    ``lr * layer_decay_rate ** (layers - 1 - depth)``; any other parameter gets ``lr``. All
    backbones of this package and the vision transformers of mmpretrain have the method. Parameters
    listed by a module's ``no_weight_decay()`` get no weight decay.

    The options of ``paramwise_cfg`` are ``layer_decay_rate`` and those of mmengine's
    ``DefaultOptimWrapperConstructor``, whose factors are multiplied with it:

    | option | meaning |
    | --- | --- |
    | ``layer_decay_rate`` | factor from one layer to the one before it, in (0, 1]; 1 is no decay |
    | ``norm_decay_mult`` | factor on the weight decay of norms; 0.0 is usual for transformers |
    | ``bias_decay_mult`` | factor on the weight decay of biases |
    | ``flat_decay_mult`` | factor on the weight decay of all parameters with one dimension |
    | ``bias_lr_mult`` | factor on the learning rate of biases |
    | ``custom_keys`` | ``{part of a name: dict(lr_mult=..., decay_mult=...)}`` |

    Args:
        optim_wrapper_cfg: ``optim_wrapper`` of the config, without ``paramwise_cfg``.
        paramwise_cfg: Options as in the table; ``layer_decay_rate`` is required.

    Raises:
        ValueError: ``layer_decay_rate`` is missing or outside (0, 1], or no module of the model has
            ``get_layer_depth``.

    Examples:
        In a config with a ``_base_``. Without ``_delete_``, AdamW gets arguments of the base's
        optimizer, such as SGD's ``momentum``, and refuses them.

        ```python
        optim_wrapper = dict(
            constructor='LayerDecayOptimWrapperConstructor',
            optimizer=dict(
                _delete_=True,
                type='AdamW',
                lr=1e-4,
                weight_decay=0.05,
            ),
            paramwise_cfg=dict(
                layer_decay_rate=0.75,
                norm_decay_mult=0.0,
                bias_decay_mult=0.0,
            ),
        )
        ```
    """

    def __init__(
        self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: dict[str, Any] | None = None
    ) -> None:
        options = dict(paramwise_cfg or {})
        # Kept among the options, because without options mmengine does not call `add_params`.
        rate: Any = options.get(_DECAY)
        check(
            'a number in (0, 1]',
            lambda v: is_number(v) and 0 < v <= 1,
            **{f'paramwise_cfg.{_DECAY}': rate},
        )
        self.layer_decay_rate = rate
        super().__init__(optim_wrapper_cfg, options)

    def add_params(
        self, params: list[dict[str, Any]], module: nn.Module, prefix: str = '', **kwargs: Any
    ) -> None:
        """Add one group per parameter, like mmengine.

        The call for the whole model then sets learning rates and weight decay.
        """
        super().add_params(params, module, prefix=prefix, **kwargs)
        if prefix:  # a step of the recursion
            return
        scales = self._scales(module)
        spared = {
            f'{path}.{name}'.removeprefix('.')
            for path, owner in _with_method(module, 'no_weight_decay')
            for name in owner.no_weight_decay()
        }
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for group in params:
            name = names[id(group['params'][0])]
            lr: Any = group.get('lr', self.base_lr)
            group.update(param_name=name, lr=lr * scales.get(name, 1.0))
            if name in spared:
                group['weight_decay'] = 0.0

    def _scales(self, model: nn.Module) -> dict[str, float]:
        scales: dict[str, float] = {}
        # Outer modules come first, so that inner ones win. mmpretrain's classifier only forwards
        # the call, or fails.
        for path, module in _with_method(model, 'get_layer_depth'):
            if not path:
                continue
            for name, _ in module.named_parameters(prefix=path):
                depth, layers = module.get_layer_depth(name, f'{path}.')
                scales[name] = self.layer_decay_rate ** (layers - 1 - depth)
        if not scales:
            advice = 'those of cpvt_backbones and the vision transformers of mmpretrain have it'
            fault = f'{type(model).__name__} has no backbone with get_layer_depth(name, prefix)'
            raise InputError(f'paramwise_cfg.{_DECAY}: {fault}; {advice}')
        return scales


def _with_method(model: nn.Module, method: str) -> list[tuple[str, Any]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if callable(getattr(module, method, None))
    ]
