"""Keys: every key of a configuration, as the settings say them beside their fields."""

from codeq_cluster.settings import NodeSettings
from codeq_cluster.settings.key import SettingKey, keys_of

KEYS: tuple[SettingKey, ...] = tuple(keys_of(NodeSettings))

__all__ = ["KEYS", "SettingKey"]
