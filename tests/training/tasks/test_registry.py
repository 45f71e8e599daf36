from __future__ import annotations

import pytest

from modelyard.errors import ConfigurationError, MissingDependencyError
from modelyard.training.tasks import FashionTask, find_task, tasks
from tests.training.conftest import RunPython
from tests.training.toy_task import ToyTask

NAMES = [
    "capsnet", "cyclegan", "dcgan", "fashion", "gan", "ladder", "linear", "maml", "mlp", "nas", "siamese",
    "siamese_text", "transfer", "vae",
]  # fmt: skip


def test_tasks_are_found_by_name() -> None:
    assert list(tasks()) == NAMES
    assert len(tasks()) == len(NAMES)
    assert tasks()["fashion"] is find_task("fashion") is FashionTask
    assert all(task.name == name for name, task in tasks().items())


@pytest.mark.parametrize("name", NAMES)
def test_recipes_hold_only_what_the_command_line_leaves_to_them(name: str) -> None:
    assert {*tasks()[name].recipe, *tasks()[name].full_recipe} <= {"batch_size", "epochs"}


@pytest.mark.parametrize(("name", "hint"), [("fasion", "Did you mean 'fashion'? "), ("zzz", "")])
def test_an_unknown_task_is_an_error_that_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_task(name)
    assert caught.value.message == f"Unknown task {name!r}. {hint}Known tasks: {', '.join(NAMES)}."


def test_looking_for_names_imports_no_tensorflow(run_python: RunPython) -> None:
    done = run_python(
        "import sys; from modelyard.training.tasks import tasks\n"
        "names = list(tasks())\n"
        "sys.stdout.write(f\"{names} {'tensorflow' in sys.modules}\")"
    )
    assert done.stdout == f"{NAMES} False", done.stderr


def test_without_the_extra_it_is_an_error_that_says_what_to_install(run_python: RunPython) -> None:
    done = run_python(
        "import sys; sys.modules['keras'] = None\n"
        "from modelyard.errors import MissingDependencyError\n"
        "from modelyard.training.tasks import find_task\n"
        "try:\n    find_task('fashion')\n"
        "except MissingDependencyError as exc:\n    sys.stdout.write(exc.message)"
    )
    assert "keras" in done.stdout, done.stderr
    assert (
        MissingDependencyError(package="keras", extra="training", purpose="x").message.partition("keras")[2]
        in done.stdout
    )


def test_a_task_of_your_own_is_named_by_module_and_class() -> None:
    assert find_task("tests.training.toy_task:ToyTask") is ToyTask


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:ToyTask", "No module named 'no_such_module'"),
        ("no_such_module:ToyTask", "Expected package.module:Class, a subclass of modelyard.training.Task that Python"),
        ("tests.training.no_such:ToyTask", "No module named 'tests.training.no_such'"),
        ("tests.training.toy_task:Toy", "tests.training.toy_task:Toy cannot be imported"),
        ("tests.training.toy_task:EXAMPLES", "it is no task"),
    ],
)
def test_a_name_that_is_no_task_is_an_error(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_task(name)
