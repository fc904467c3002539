"""Keys: the table of every setting, its name in a file and in the environment, and its bounds."""

from codeq_cluster.config.key import SettingKey
from codeq_cluster.config.keys.callers import AUTH, BUDGETS, RATES
from codeq_cluster.config.keys.node import LINK, NODE, RAFT, STORE, TLS
from codeq_cluster.config.keys.outside import ARTIFACTS, BACKUP, TRACING, WEBHOOKS
from codeq_cluster.config.keys.tasks import LIFECYCLE, LIMITS

KEYS: tuple[SettingKey, ...] = (
    *NODE,
    *TRACING,
    *RAFT,
    *TLS,
    *LIFECYCLE,
    *AUTH,
    *ARTIFACTS,
    *BACKUP,
    *LIMITS,
    *RATES,
    *BUDGETS,
    *LINK,
    *STORE,
    *WEBHOOKS,
)

__all__ = ["KEYS", "SettingKey"]
