"""Files that belong to results, in a directory or in an S3-compatible store."""

from codeq_cluster.artifacts.provider import Reading, Stored
from codeq_cluster.artifacts.store import ArtifactStore, Upload, open_store

__all__ = ["ArtifactStore", "Reading", "Stored", "Upload", "open_store"]
