"""What mmengine would run or delete because a checkpoint names it is removed from the
checkpoint.
"""

from typing import Any

from ..report import CheckpointError


class RuntimeInfo(dict[str, Any]):
    """``message_hub.runtime_info`` of a checkpoint, without its config.

    mmengine's inferencers run the stored config as Python when they get no other.
    """

    def __missing__(self, key: str) -> Any:
        if key == 'cfg':
            advice = 'name the config, such as model="CONFIG.py" of an inferencer'
            raise CheckpointError(
                f'checkpoint: a config stored in a checkpoint is never run; {advice}'
            )
        raise KeyError(key)


def remove_instructions(content: dict[str, Any]) -> None:
    """Remove stored configs and paths of best checkpoints from ``content``, in place.

    ``meta.config`` is run by mmengine's ``Runner.resume`` and ``FlexibleRunner.resume``,
    ``meta.cfg`` and ``message_hub.runtime_info.cfg`` by its inferencers. Its ``CheckpointHook``
    deletes the path in ``runtime_info.best_ckpt`` (with several metrics ``best_ckpt_<metric>``) at
    the next better score.
    """
    meta = content.get('meta')
    if isinstance(meta, dict):
        meta.pop('cfg', None)
        meta.pop('config', None)
    hub = content.get('message_hub')
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    if isinstance(hub, dict) and isinstance(info, dict):
        hub['runtime_info'] = RuntimeInfo(
            (key, value)
            for key, value in info.items()
            if key != 'cfg' and not (isinstance(key, str) and key.startswith('best_ckpt'))
        )
