"""Models and their versions: what is there, what should be, and who is asked."""

from modelyard.serving.repository._admin import Admin
from modelyard.serving.repository._cache import VersionCache
from modelyard.serving.repository._manager import ModelManager
from modelyard.serving.repository._versions import Version, VersionState, VersionStatus, file_stamp, file_stats
from modelyard.serving.repository._watcher import ModelWatcher

__all__ = [
    "Admin",
    "ModelManager",
    "ModelWatcher",
    "Version",
    "VersionCache",
    "VersionState",
    "VersionStatus",
    "file_stamp",
    "file_stats",
]
