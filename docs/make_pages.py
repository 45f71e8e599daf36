"""Writes the pages that are made from the server's own tables: ``python docs/make_pages.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs import make_metrics_page, make_migration_page, make_operating_page

PAGES = (make_metrics_page, make_migration_page, make_operating_page)

if __name__ == "__main__":
    for module in PAGES:
        module.PAGE.write_text(module.page(), "utf-8")
        sys.stdout.write(f"wrote {module.PAGE}\n")
