"""Every flag of tensorflow_model_server is understood, and says what becomes of it."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import ServerOptions, parse_flags
from modelyard.serving.config import FLAGS

#: TensorFlow Serving's flags with their defaults there; None where the default depends on the machine.
UPSTREAM: dict[str, str | None] = {
    "port": "8500",
    "grpc_socket_path": "",
    "rest_api_port": "0",
    "rest_api_num_threads": None,
    "rest_api_timeout_in_ms": "30000",
    "rest_api_enable_cors_support": "false",
    "grpc_max_threads": None,
    "grpc_channel_arguments": "",
    "enable_grpc_healthcheck_service": "false",
    "use_alts_credentials": "false",
    "ssl_config_file": "",
    "model_name": "default",
    "model_base_path": "/models/m",
    "model_config_file": "",
    "model_config_file_poll_wait_seconds": "0",
    "file_system_poll_wait_seconds": "1",
    "num_load_threads": "0",
    "num_unload_threads": "0",
    "max_num_load_retries": "5",
    "load_retry_interval_micros": "60000000",
    "flush_filesystem_caches": "true",
    "saved_model_tags": "serve",
    "allow_version_labels_for_unavailable_models": "false",
    "enable_batching": "false",
    "batching_parameters_file": "",
    "enable_per_model_batching_parameters": "false",
    "enable_model_warmup": "true",
    "num_request_iterations_for_warmup": "0",
    "monitoring_config_file": "",
    "enable_profiler": "true",
    "tensorflow_session_parallelism": "0",
    "tensorflow_intra_op_parallelism": "0",
    "tensorflow_inter_op_parallelism": "0",
    "tensorflow_session_config_file": "",
    "platform_config_file": "",
    "per_process_gpu_memory_fraction": "0",
    "remove_unused_fields_from_bundle_metagraph": "true",
    "prefer_tflite_model": "false",
    "num_tflite_pools": None,
    "num_tflite_interpreters_per_pool": "1",
    "enable_signature_method_name_check": "false",
    "xla_cpu_compilation_enabled": "false",
    "xla_gpu_compilation_enabled": "false",
    "thread_pool_factory_config_file": "",
    "mixed_precision": "",
    "skip_initialize_tpu": "false",
    "enable_serialization_as_tensor_content": "false",
}
#: Where the default here is another on purpose; the table's note says why.
DIFFERENT = {"enable_grpc_healthcheck_service"}
BASE = "--model_base_path=/models/m"


def parse(*flags: str, **environment: str) -> ServerOptions:
    return parse_flags([BASE, *flags], environment)


def test_every_upstream_flag_with_its_upstream_default(caplog: pytest.LogCaptureFixture) -> None:
    given = [f"--{name}={'4' if value is None else value}" for name, value in UPSTREAM.items()]
    with caplog.at_level(logging.WARNING):
        options = parse_flags(given)
    assert (options.port, options.rest_api_port, options.models[0].name) == (8500, 0, "default")
    # The three whose default depends on the machine are the only ones that could be noticed.
    assert {record.getMessage().split()[0] for record in caplog.records} <= {
        "--rest_api_num_threads",
        "--grpc_max_threads",
    }


@pytest.mark.parametrize("name", sorted(UPSTREAM.keys() - {"model_base_path"}))
def test_defaults_are_upstream_s(name: str) -> None:
    flag = next(flag for flag in FLAGS if flag.name == name)
    default = UPSTREAM[name]
    if default is None:
        assert flag.default == 0
    elif name in DIFFERENT:
        assert flag.effect == "better"
        assert str(flag.default).lower() != default
    else:
        same = float(flag.default) == float(default) if flag.kind in ("int", "float") else None
        assert same if same is not None else str(flag.default).lower() == default


def test_version_is_the_only_upstream_flag_that_ends_the_process() -> None:
    assert {flag.name for flag in FLAGS if flag.effect != "ours"} == UPSTREAM.keys() | {"version"}


@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if flag.effect == "ignored"])
def test_flags_without_effect_say_so_in_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    flag = next(flag for flag in FLAGS if flag.name == name)
    value = {"bool": str(not flag.default).lower(), "int": "3", "float": "0.5", "text": "/some/file"}[flag.kind]
    with caplog.at_level(logging.WARNING):
        parse(f"--{name}={value}")
    (record,) = caplog.records
    assert record.getMessage() == f"--{name} has no effect: {flag.note}"
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--rest_api_enable_cors_support"], True),
        (["--rest_api_enable_cors_support=true"], True),
        (["--rest_api_enable_cors_support=True"], True),
        (["--rest_api_enable_cors_support=1"], True),
        (["--rest_api_enable_cors_support", "true"], True),
        (["--rest_api_enable_cors_support", "--port=1"], True),
        (["--rest_api_enable_cors_support=false"], False),
        (["--rest_api_enable_cors_support", "false"], False),
        (["--rest_api_enable_cors_support=0"], False),
        (["--rest_api_enable_cors_support", "--rest_api_enable_cors_support=false"], False),
        ([], False),
    ],
)
def test_forms_of_booleans(flags: list[str], expected: bool) -> None:
    assert parse(*flags).cors is expected


def test_options_made_without_flags_have_the_flags_defaults() -> None:
    parsed = parse("--transport=python")
    made = ServerOptions(transport="python", models=parsed.models)
    # What depends on the machine.
    measured = {"threads", "load", "watch"}
    assert {name: value for name, value in vars(made).items() if name not in measured} == {
        name: value for name, value in vars(parsed).items() if name not in measured
    }


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--port=-1", "expected a port"),
        ("--port=", "expected a port"),
        ("--num_load_threads=-1", "expected a whole number"),
        ("--num_load_threads=1.5", "expected a whole number"),
        ("--file_system_poll_wait_seconds=nan", "expected a number"),
        ("--drain_seconds=inf", "expected a number"),
        ("--drain_seconds=soon", "expected a number"),
        ("--drain_seconds=-1", "--drain_seconds=-1; expected 0 or more"),
        ("--max_queue_delay_ms=-0.5", "--max_queue_delay_ms=-0.5; expected 0 or more"),
        ("--prediction_log_max_seconds=0", "expected more than 0"),
        ("--tensorflow_intra_op_parallelism=100000", "--tensorflow_intra_op_parallelism=100000; expected 1024 or less"),
        ("--max_connections=99999999999999999999", "=99999999999999999999; expected 4611686018427387904 or less"),
        ("--drain_seconds=1e300", "--drain_seconds=1e+300; expected 2147483647 or less"),
        ("--rest_api_max_json_depth=501", "--rest_api_max_json_depth=501; expected 500 or less"),
        ("--tensorflow_session_parallelism=1025", "--tensorflow_session_parallelism=1025; expected 1024 or less"),
        ("--enable_batching=yes", "expected true or false"),
        ("--grpc_channel_arguments=grpc.max_connection_age_ms", "expected name=value"),
        ("--model_control_mode=sometimes", "invalid choice"),
        ("--model_name=", "--model_name is empty"),
        ("--model_base_path=nothing://bucket/m", "not on a file system that is known here"),
        ("--prt=1", "Did you mean --port?"),
        ("--model_nam=x", "Did you mean --model_name?"),
        ("--device=gpu", "--device=gpu; expected cpu, cuda"),
    ],
)
def test_values_that_make_no_sense(flag: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(flag)
    assert message in caught.value.message


def test_negative_numbers_mean_what_they_mean_upstream() -> None:
    """No pause, no time-out, no effect."""
    options = parse(
        "--load_retry_interval_micros=-1", "--rest_api_timeout_in_ms=-1", "--num_request_iterations_for_warmup=-1"
    )
    assert (options.watch.retry_interval_s, options.warmup_iterations) == (0.0, 1)
    assert options.rest_timeout_s == parse("--rest_api_timeout_in_ms=0").rest_timeout_s > 1e6
    without_effect = [flag.name for flag in FLAGS if flag.effect == "ignored" and flag.kind in ("int", "float")]
    parse(*(f"--{name}=-1" for name in without_effect), "--tensorflow_session_parallelism=2")


@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if flag.kind in ("int", "float")])
@pytest.mark.parametrize("digits", [20, 300])
def test_numbers_that_nothing_can_hold(name: str, digits: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--{name}.*; expected"):
        parse(f"--{name}={'9' * digits}")


def test_a_page_of_metrics_has_a_path_from_the_root(tmp_path: Path) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text('prometheus_config { enable: true path: "monitoring/metrics" }')
    with pytest.raises(ConfigurationError) as caught:
        parse(f"--monitoring_config_file={file}")
    assert caught.value.message == (
        f"--monitoring_config_file={file}: prometheus_config.path is 'monitoring/metrics'; expected a path from the "
        "root, such as '/monitoring/metrics'."
    )


def test_metrics_need_the_rest_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text("prometheus_config { enable: true }")
    parse(f"--monitoring_config_file={file}", "--rest_api_port=8501")
    assert not caplog.records
    parse(f"--monitoring_config_file={file}")
    assert f"--monitoring_config_file={file} has no effect: metrics are on the REST port" in caplog.text


def test_a_flag_of_few_values_names_all_of_them() -> None:
    unnamed = {
        flag.name: [choice for choice in flag.choices if not re.search(rf"\b{choice}\b", flag.help)] for flag in FLAGS
    }
    assert {name: choices for name, choices in unnamed.items() if choices} == {}


def test_abbreviations_are_not_taken() -> None:
    with pytest.raises(ConfigurationError, match="Unknown argument --rest_api_enable_cors"):
        parse("--rest_api_enable_cors")


def test_the_three_parallelism_flags_exclude_each_other() -> None:
    flags = [f"--tensorflow_{name}_parallelism=2" for name in ("session", "intra_op", "inter_op")]
    with pytest.raises(ConfigurationError, match="are all set"):
        parse(*flags)
    assert parse(*flags[:2]).threads == 2


@pytest.mark.parametrize("other", ["--runtime=litert", "--prefer_tflite_model"])
def test_a_device_and_another_runtime_exclude_each_other(other: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--device=openvino:CPU is for openvino, and {other} is set"):
        parse("--device=openvino:CPU", other)
    assert parse("--device=openvino:CPU", "--runtime=openvino").load.device == "openvino:CPU"


def test_the_environment_names_the_device_where_no_flag_does() -> None:
    """An image is built on the one for cards, with an entry point of its own."""
    environment = {"MODELYARD_DEVICE": "openvino:CPU"}
    needed = ["--model_base_path=/models/m"]
    assert parse_flags(needed, environment).load.device == "openvino:CPU"
    assert parse_flags([*needed, "--device=cpu"], environment).load.device == "cpu"
    assert parse_flags(needed, {"MODELYARD_DEVICE": ""}).load.device == "cpu"
    with pytest.raises(ConfigurationError, match="--device=gpu; expected cpu, cuda"):
        parse_flags(needed, {"MODELYARD_DEVICE": "gpu"})
    assert parse().load.device == "cpu"


def test_channel_arguments() -> None:
    text = "grpc.max_connection_age_ms=2000,grpc.lb=-1,grpc.primary_user_agent=me/1.0,grpc.big=99999999999,"
    assert parse(f"--grpc_channel_arguments={text}").grpc_channel_arguments == (
        ("grpc.max_connection_age_ms", 2000),
        ("grpc.lb", -1),
        ("grpc.primary_user_agent", "me/1.0"),
        ("grpc.big", "99999999999"),
    )


@pytest.mark.parametrize(("seconds", "expected"), [("0", 0), ("-1", -1), ("30", 30)])
def test_how_often_the_config_file_is_read(seconds: str, expected: int) -> None:
    assert parse(f"--model_config_file_poll_wait_seconds={seconds}").model_config_poll_s == expected


@pytest.mark.parametrize(
    ("environment", "name", "base_path"),
    [
        ({"MODEL_NAME": "half"}, "half", "/models/half"),
        ({"MODEL_BASE_PATH": "/data"}, "model", "/data/model"),
        ({"MODEL_BASE_PATH": "/data", "MODEL_NAME": "half"}, "half", "/data/half"),
        ({"MODEL_BASE_PATH": "", "MODEL_NAME": "half"}, "half", "/models/half"),
    ],
)
def test_the_image_s_environment(environment: dict[str, str], name: str, base_path: str) -> None:
    (model,) = parse_flags([], environment).models
    assert (model.name, str(model.base_path)) == (name, base_path)


def test_flags_go_before_the_environment(tmp_path: Path) -> None:
    environment = {"MODEL_NAME": "half", "MODEL_BASE_PATH": "/data"}
    for flags, name, base_path in (
        ([BASE, "--model_name=mine"], "mine", "/models/m"),
        ([BASE], "half", "/models/m"),
        (["--model_name=mine"], "mine", "/data/half"),
        # Given is given, though it is what the program has by default.
        (["--model_name=default"], "default", "/data/half"),
    ):
        (model,) = parse_flags(flags, environment).models
        assert (model.name, str(model.base_path)) == (name, base_path)
    (model,) = parse_flags(["--model_name=default"], {"MODEL_BASE_PATH": str(tmp_path)}).models
    assert (model.name, model.base_path) == ("default", tmp_path / "model")
    # The entry point of upstream's image has a name of its own, the program has another.
    (model,) = parse_flags([BASE], {"MODEL_BASE_PATH": "/data"}).models
    assert (model.name, parse_flags([BASE], {}).models[0].name) == ("model", "default")
    config = tmp_path / "models.config"
    config.write_text('model_config_list { config { name: "a" base_path: "/a" model_platform: "tensorflow" } }')
    (model,) = parse_flags([f"--model_config_file={config}"], environment).models
    assert (model.name, str(model.base_path)) == ("a", "/a")


def test_a_folder_that_cannot_be_looked_at() -> None:
    # As where a folder belongs to another user, which hinders no root: the server waits for it.
    hidden = "/" + "x" * 300
    assert parse_flags([], {"MODEL_BASE_PATH": hidden}).models[0].base_path == Path(hidden, "model")


def test_no_environment_no_model() -> None:
    for environment in ({}, {"MODEL_NAME": "", "MODEL_BASE_PATH": ""}):
        with pytest.raises(ConfigurationError, match="--model_base_path is required"):
            parse_flags([], environment)


def test_parsing_reads_no_process_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_NAME", "half")
    monkeypatch.setattr(sys, "argv", ["x", "--model_base_path=/y"])
    with pytest.raises(ConfigurationError, match="--model_base_path is required"):
        parse_flags([])


def test_the_program_s_name_behind_the_entry_point() -> None:
    for name in ("tensorflow_model_server", "/usr/bin/tensorflow_model_server", "/usr/bin/tf_serving_entrypoint.sh"):
        assert parse(name, "--rest_api_port=9000").rest_api_port == 9000
    with pytest.raises(ConfigurationError, match="Unknown argument /models/m"):
        parse("tensorflow_model_server", "/models/m")
