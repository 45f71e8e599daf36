"""Pages from Jinja2 templates: a package's own, which extend ``page.html`` and import ``macros.html`` of this one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from modelyard.lazy import needs_extra

if TYPE_CHECKING:
    import jinja2


def render_page(package: str, template: str, *, extra: str, **values: object) -> str:
    """Renders a template of a package's folder ``templates``; every value is escaped.

    Args:
        package: Import name of the package.
        template: Name of the template.
        extra: The extra of modelyard that brings Jinja2 to users of the package.
        **values: The template's variables.

    Raises:
        MissingDependencyError: Jinja2 is not installed.
    """
    with needs_extra(extra, "jinja2", purpose="Writing a report"):
        import jinja2  # noqa: F401
    return _environment(package).get_template(template).render(values)


# To compile the templates of a report takes ten times as long as to fill them in; three packages have some.
@lru_cache(maxsize=4)
def _environment(package: str) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader(__package__)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
