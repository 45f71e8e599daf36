"""Pages from Jinja2 templates: a package's own, which extend ``page.html`` and import ``macros.html`` of this one."""

from __future__ import annotations

from modelyard.errors import MissingDependencyError


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
    try:
        import jinja2
    except ModuleNotFoundError as exc:
        if exc.name != "jinja2":
            raise
        raise MissingDependencyError(package="jinja2", extra=extra, purpose="Writing a report") from exc
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader(__package__)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    return environment.get_template(template).render(values)
