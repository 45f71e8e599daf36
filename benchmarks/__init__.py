"""Programs that measure. Nothing here is in the package that is installed."""
