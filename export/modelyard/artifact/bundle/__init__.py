"""One file for phones: a signature's graph from a TFLite file, with the metadata that Google's task libraries read."""

from modelyard.artifact.bundle._bundle import Bundle, BundleOptions, write_bundle

__all__ = ["Bundle", "BundleOptions", "write_bundle"]
