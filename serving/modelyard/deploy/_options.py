"""Options of every cloud, and the command that trains there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelyard.errors import ConfigurationError

#: Bodies of API calls or files of a command line, by file name, in the order in which they are sent.
Documents = Mapping[str, Mapping[str, object]]

# The parameters are arguments of the shell, never part of its text: nothing in them is interpreted. Of several machines
# each gets both commands; the first one exports.
TRAIN_AND_EXPORT = (
    "task=$0 epochs=$1 run=$2 repository=$3 name=$4; shift 4; "
    'modelyard train "$task" --epochs "$epochs" --model-dir "$run" "$@" && '
    'modelyard export "$task" --model-dir "$run" --repository "$repository" --name "$name" "$@"'
)
#: Every provider's names fit this: letters, digits and single hyphens.
_NAME = re.compile(r"[a-zA-Z](?:-?[a-zA-Z0-9]){1,27}")
#: Of the library, or of a module in the training image.
_TASK = re.compile(r"[a-z][a-z0-9_]*|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/@-]*")
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What is trained and served, in any cloud; the fields are the flags of ``modelyard deploy``.

    Attributes:
        set: Arguments of the task, each ``NAME=VALUE``.
        data: Arguments of the task that are folders in an object store of that cloud, each ``NAME=URL``: the task
            gets the folder where the cloud shows its files.
        nodes: Machines that train together, every step on all of them.

    Raises:
        ConfigurationError: A value that no cloud accepts.
    """

    name: str
    task: str
    image: str
    training_image: str
    epochs: int = 10
    run: str = "1"
    set: Sequence[str] = ()
    data: Sequence[str] = ()
    nodes: int = 1
    machine: str = ""
    training_machine: str = ""
    min_replicas: int = 1
    max_replicas: int = 1

    def __post_init__(self) -> None:
        check("name", self.name, _NAME, "a letter, then letters, digits and single hyphens, 2 to 28 of them")
        check("run", f"r{self.run}", _NAME, "letters, digits and single hyphens")
        check("task", self.task, _TASK, "a task, such as fashion or, of a module in the image, photos_task:PhotosTask")
        for what, image in (("image", self.image), ("training-image", self.training_image)):
            check(what, image, _IMAGE, "an image, such as registry.example/modelyard/serving:0.1.0")
        if self.epochs < 1:
            raise ConfigurationError(f"--epochs is {self.epochs}; expected at least 1.")
        if self.nodes < 1:
            raise ConfigurationError(f"--nodes is {self.nodes}; expected at least 1.")
        for what, texts in (("set", self.set), ("data", self.data)):
            for text in texts:
                check(what, text, _SETTING, "NAME=VALUE, such as learning_rate=0.001 or data=s3://my-bucket/photos")
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ConfigurationError(
                f"--min-replicas is {self.min_replicas} and --max-replicas is {self.max_replicas}; "
                "expected 1 <= min <= max."
            )

    @property
    def job(self) -> str:
        """Name of the training job."""
        return f"{self.name}-{self.run}"

    def folders(self, url: re.Pattern[str], expected: str) -> dict[str, str]:
        """URLs of :attr:`data` by argument; raises ConfigurationError where one is not ``expected``."""
        found = {}
        for text in self.data:
            argument, _, value = text.partition("=")
            check(f"data {argument}", value, url, expected)
            found[argument] = value
        return found

    def settings(self, folders: Mapping[str, str]) -> list[str]:
        """What both commands get besides: the arguments of the task, and where it finds its folders."""
        given = [*self.set, *(f"{argument}={folder}" for argument, folder in folders.items())]
        return [part for text in given for part in ("--set", text)]


def check(what: str, value: str, pattern: re.Pattern[str], expected: str) -> None:
    """Raises ConfigurationError where the value of a flag does not match; ``expected`` is the pattern in words."""
    if not pattern.fullmatch(value):
        raise ConfigurationError(f"--{what} is {value!r}; expected {expected}.")
