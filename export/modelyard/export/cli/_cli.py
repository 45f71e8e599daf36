"""``modelyard export``."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from modelyard.artifact import Location, check_destination, check_model_name, locate
from modelyard.console import ProgressBar, make_command, printable, quiet_libraries, write_error
from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.export.cli._objects import custom_objects, make_model
from modelyard.export.publish import (
    FORMATS,
    LIBRARIES,
    PRECISIONS,
    RUNTIMES,
    Budget,
    ExportEvent,
    ExportOptions,
    ExportReport,
    Progress,
)

_DEFAULTS = ExportOptions()
_EXAMPLES = """\
sources:
  a task             fashion: the newest checkpoint of its run, verified on its own data
  a run              runs/photos: the same, with the task and the arguments that it was trained with; or the folder
                     of one of its checkpoints
  a SavedModel       its directory, in the format of TensorFlow 2 or 1
  a Keras model      model.keras
  an ONNX file       model.onnx, served as it is
  a TFLite file      model.tflite, served as it is
  an MLflow model    its folder, of the flavors onnx, tensorflow and keras
  a function         with --from: module:function, which returns a model of PyTorch, scikit-learn, XGBoost or LightGBM

examples:
  modelyard export fashion --repository models
      Takes the newest checkpoint of runs/fashion to models/fashion/<next version>.
  modelyard export fashion --model-dir runs/quick --repository models --name fashion-quick
      Another run, under another name.
  modelyard export saved/resnet --data photos --repository models
      Somebody else's SavedModel, verified on a folder of images.
  modelyard export model.onnx --data examples.npz --repository models
      An ONNX file; examples.npz has one array for each input.
  modelyard export model.onnx --data examples.npz --expected answers.npz --repository models
      The same, held to the answers of the program that it was made from: one array for each output.
  modelyard export --from torch flowers:make_model --data examples.npz --repository models
      What make_model() of flowers.py returns, a torch.nn.Module, converted to ONNX and held to PyTorch's answers.
  modelyard export model.keras --import my_layers --data examples.npz --repository models
      A Keras model with classes of your own, which my_layers.py defines.
  modelyard export fashion --repository s3://bucket/models --signing-key key.pem
      Publishes to an object store, signed.
  modelyard export fashion --repository models --optional tflite
      Publishes without TFLite if that format fails; report.html then says why.
  modelyard export fashion --repository models --precision float32 int8 --max-accuracy-drop 0.5%
      Variants in 8-bit integers beside the float32 files; refused by name and figure where they cost more.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard export``."""
    parser = make_command(
        "modelyard export",
        "Convert a trained model to SavedModel, ONNX and TFLite, verify each against the source, "
        "and publish them as the next version. Nothing is published that was not verified.",
        _EXAMPLES,
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="name of a task, such as fashion, folder of a run, or path of a model"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="ARGUMENT=VALUE",
        help="value for an argument of the task, as its training was given; may be given more than once",
    )  # fmt: skip
    parser.add_argument("--model-dir", type=Path, metavar="RUN", help="folder of the task's run (default: runs/TASK)")
    parser.add_argument(
        "--data", metavar="DATA",
        help="examples to verify with, for a path: an .npz or .npy file with arrays, a folder of images, a .tfrecord "
        "file of tf.Example messages, or the word random",
    )  # fmt: skip
    parser.add_argument(
        "--expected", metavar="DATA",
        help="answers to --data of the program that wrote the file, as --data, with an array for each output",
    )  # fmt: skip
    parser.add_argument(
        "--from", choices=LIBRARIES, dest="library",
        help="SOURCE is MODULE:FUNCTION, of this folder or installed, which returns a model of this library",
    )  # fmt: skip
    parser.add_argument(
        "--signature", action="append", metavar="SIGNATURE",
        help="NAME: export this signature of a SavedModel (default: all). NAME:DTYPE[SHAPE], such as "
        "'ids:int32[-1,12]': an input of a Keras model that does not know its own; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--import", action="append", default=[], dest="modules", metavar="MODULE",
        help="import this Python module, of this folder or installed, which defines the classes of a .keras or .h5 "
        "file; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        action="append",
        choices=FORMATS,
        help="make this format (default: all); may be given more than once",
    )
    parser.add_argument(
        "--repository", metavar="REPO", required=True,
        help="folder of the model repository, made if absent, or its URL in an object store (s3://, gs://)",
    )  # fmt: skip
    parser.add_argument(
        "--stage-dir", type=Path, metavar="DIR",
        help="keep conversions here: the same command, given again, takes them up and goes on from there",
    )  # fmt: skip
    parser.add_argument(
        "--signing-key", type=Path, metavar="KEY.PEM",
        help="sign the version with this private Ed25519 key (modelyard repo keygen makes one)",
    )  # fmt: skip
    parser.add_argument("--name", help="name of the model in the repository (default: the source's)")
    parser.add_argument(
        "--examples", type=int, default=512, metavar="N", help="real examples to verify with (default: %(default)s)"
    )
    parser.add_argument(
        "--optional", action="append", default=[], choices=FORMATS,
        help="publish without this format if it fails; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--min-examples", type=int, default=_DEFAULTS.min_examples, metavar="N",
        help="refuse to verify with fewer (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=float, default=_DEFAULTS.max_abs_error, metavar="E",
        help="largest absolute error of a float output of the float32 formats (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=list(_DEFAULTS.precision),
        help="precisions of the ONNX and TFLite files; others than float32 are variants beside it (default: float32)",
    )  # fmt: skip
    parser.add_argument(
        "--max-accuracy-drop", type=_share, default=_DEFAULTS.budget.max_accuracy_drop, metavar="SHARE",
        help="refuse a variant that costs more accuracy, such as 0.5%% or 0.005 (default: 0.5%%)",
    )  # fmt: skip
    parser.add_argument(
        "--max-abs-error", type=float, metavar="E",
        help="refuse a variant with a larger absolute error of a float output (default: no limit where classes show "
        "the accuracy, else 5%% of the output's spread)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration-data", metavar="DATA",
        help="representative examples for int8, as --data (default: some of the examples that verify)",
    )  # fmt: skip
    parser.add_argument(
        "--runtime", choices=RUNTIMES, help="serve with this runtime by default (default: the fastest measured)"
    )
    parser.add_argument(
        "--measure-seconds", type=float, default=_DEFAULTS.measure_seconds, metavar="S",
        help="about how long to measure runtimes, precisions and thread counts (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-unsafe-ops", action="store_true",
        help="export a SavedModel though it has operations that run Python or touch the file system",
    )  # fmt: skip
    parser.add_argument(
        "--allow-constant", action="append", default=[], metavar="OUTPUT",
        help="this float output may be the same for every example; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--stochastic", action="append", default=[], metavar="OUTPUT[,OUTPUT]",
        help="these outputs are random, and compared in distribution: many draws of each example, by "
        "Kolmogorov-Smirnov tests; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--opset", type=int, help="ONNX operator set (default: the newest that tf2onnx and onnxruntime share)"
    )
    parser.add_argument("--no-simplify", action="store_true", help="leave ONNX graphs as tf2onnx makes them")
    # What modelyard.export.cli._process tells its child: where to write the stage, and to end when that process does.
    parser.add_argument("--stage-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end-with-input", action="store_true", help=argparse.SUPPRESS)
    return parser


def _share(text: str) -> float:
    """A share as people write it: 0.5% or 0.005."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a share such as 0.5% or 0.005") from exc


def export_here(argv: list[str] | None = None) -> int:
    """Exports the newest checkpoint of a training run, in this process."""
    quiet_libraries()
    # TensorFlow's Python side warns of every old call that loading an old model takes.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    arguments = make_parser().parse_args(argv)
    if arguments.end_with_input:
        threading.Thread(target=_end_with_input, args=(arguments.stage_file,), daemon=True).start()
        signal.signal(signal.SIGINT, _interrupt)
    try:
        report = _export(arguments)
    except ModelyardError as exc:
        write_error("export", exc.message)
        return 2 if isinstance(exc, ConfigurationError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("modelyard export: stopped. Nothing was published.\n")
        return 130
    if report is not None:
        sys.stdout.write(printable(f"{report}\n", keep="\n"))
    return 0


#: SIGINT came. Python drops the exception where it comes in the middle of a ``__del__``, of which TensorFlow has many.
_interrupted = threading.Event()


def _interrupt(number: int, frame: object) -> None:
    _interrupted.set()
    raise KeyboardInterrupt


def _end_with_input(stage_file: Path | None) -> None:
    # Not by sys.stdin: its lock would be held when the interpreter ends.
    os.read(0, 1)
    if stage_file is not None:
        # Who made it was killed.
        stage_file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            stage_file.parent.rmdir()
    os.kill(os.getpid(), signal.SIGTERM)


def _export(arguments: argparse.Namespace) -> ExportReport | None:
    from modelyard.training import Cluster, read_record

    options = ExportOptions(
        formats=tuple(dict.fromkeys(arguments.format or FORMATS)),
        optional=tuple(dict.fromkeys(arguments.optional)),
        opset=arguments.opset,
        min_examples=arguments.min_examples,
        max_abs_error=arguments.tolerance,
        allow_unsafe_ops=arguments.allow_unsafe_ops,
        stage_dir=arguments.stage_dir,
        signing_key=arguments.signing_key,
        precision=tuple(dict.fromkeys(arguments.precision)),
        budget=Budget(max_accuracy_drop=arguments.max_accuracy_drop, max_abs_error=arguments.max_abs_error),
        simplify=not arguments.no_simplify,
        constant_outputs=tuple(arguments.allow_constant),
        stochastic=tuple(name for each in arguments.stochastic for name in each.split(",") if name),
        runtime=arguments.runtime,
        measure_seconds=arguments.measure_seconds,
    )
    if arguments.max_abs_error is not None and options.precision == ("float32",):
        raise ConfigurationError(
            "--max-abs-error is the budget of variants, and --precision asks for none; float32 has --tolerance."
        )
    if arguments.examples < options.min_examples:
        raise ConfigurationError(f"--examples is {arguments.examples}; expected at least {options.min_examples}.")
    source = arguments.source
    path = Path(source)
    # A task's name is never a path: what exists, or has a folder or a suffix in its name, is meant as one.
    if arguments.library is not None:
        name = arguments.name or source.rpartition(":")[2]
        check_model_name(name)
        _check_flags(arguments)
        model = make_model(source, arguments.library)
        return _export_path(arguments, locate(arguments.repository) / name, options, model)
    record = read_record(path)
    is_path = record is None and (path.exists() or (":" not in source and (path.name != source or bool(path.suffix))))
    # Before a task is looked for, which brings TensorFlow.
    cluster = None if is_path else Cluster.from_environment()
    if cluster is not None and not cluster.is_chief:
        # A job of several machines has one command for all of them, and one of them has the checkpoints.
        sys.stderr.write(f"modelyard export: by TF_CONFIG this process is {cluster.name}; {cluster.chief} exports.\n")
        return None
    if arguments.name is not None:
        check_model_name(arguments.name)
    objects = custom_objects(arguments.modules)
    name = arguments.name or (_name_of(path) if is_path else record.task if record else _name_of_task(source))
    model_dir = locate(arguments.repository) / name
    check_destination(model_dir)
    if not is_path:
        return _export_task(arguments, model_dir, options)
    if not path.exists():
        raise ConfigurationError(f"{source} does not exist.")
    _check_flags(arguments)
    # Not before: it takes seconds.
    import keras

    with keras.saving.custom_object_scope(objects):
        return _export_path(arguments, model_dir, options)


def _name_of_task(source: str) -> str:
    from modelyard.training.tasks import find_task

    try:
        return find_task(source).name
    except ConfigurationError as exc:
        if ":" in source:
            raise
        raise ConfigurationError(f"There is no file or folder {source!r}. {exc.message}") from exc


def _name_of(path: Path) -> str:
    path = path.resolve()
    # The version directory of a repository is called by its number: the model is the folder above.
    return path.parent.name if path.name.isdecimal() else path.stem


def _check_flags(arguments: argparse.Namespace) -> None:
    """Refuses what does not go with a model."""
    for flag, given in (("--set", arguments.set), ("--model-dir", arguments.model_dir)):
        if given:
            raise ConfigurationError(f"{flag} is for tasks; {arguments.source} is a model already.")
    if arguments.data is None:
        raise ConfigurationError(
            f"{arguments.source} needs examples to be verified with; give --data PATH, or --data random."
        )


def _export_path(
    arguments: argparse.Namespace, model_dir: Location, options: ExportOptions, model: object = None
) -> ExportReport:
    from modelyard.export.publish import export

    with ProgressBar() as bar:
        return export(
            Path(arguments.source) if model is None else model,
            model_dir,
            data=arguments.data,
            expected=arguments.expected,
            signatures=arguments.signature,
            calibration=arguments.calibration_data,
            options=options,
            examples=arguments.examples,
            progress=_telling(bar, arguments.stage_file),
        )


def _telling(progress: Progress, file: Path | None) -> Progress:
    """Progress that also writes the stage to a file, for who outlives this process, and ends what was interrupted."""
    if file is None:
        return progress
    stages: list[str] = []

    def tell(event: ExportEvent) -> None:
        if _interrupted.is_set():
            raise KeyboardInterrupt
        if stages[-1:] != [event.stage]:
            stages.append(event.stage)
            file.write_text(event.stage, "utf-8")
        progress(event)

    return tell


def _export_task(arguments: argparse.Namespace, model_dir: Location, options: ExportOptions) -> ExportReport:
    from modelyard.training import read_record, restore
    from modelyard.training.tasks import make_task

    for flag, value in (
        ("--data", arguments.data),
        ("--expected", arguments.expected),
        ("--signature", arguments.signature),
        ("--calibration-data", arguments.calibration_data),
    ):
        if value is not None:
            raise ConfigurationError(f"{flag} is for paths; the task {arguments.source} brings its own.")
    source = Path(arguments.source)
    folder = source if read_record(source) is not None else arguments.model_dir or Path("runs") / source
    result = restore(folder, make_task(arguments.source, arguments.set))
    with ProgressBar() as bar:
        return result.export(
            model_dir, examples=arguments.examples, options=options, progress=_telling(bar, arguments.stage_file)
        )
