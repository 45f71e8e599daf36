"""Where models are computed: the CPU, or an accelerator that onnxruntime or OpenVINO reaches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from modelyard.artifact.runtimes import disable_telemetry, onnx_options, openvino_core
from modelyard.errors import ConfigurationError, LoadError, MissingDependencyError
from modelyard.serving.backends._runtimes import Runtime, is_installed

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

CPU = "cpu"
_CUDA, _OPENVINO = re.compile(r"cuda(:\d{1,3})?"), re.compile(r"openvino:[A-Z]+(\.\d{1,3})?")
_PROVIDER = "CUDAExecutionProvider"
#: An ONNX file with nothing but y = Identity(x), of one float32.
_SMALLEST = (
    b'\x08\x08\x12\x00:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08'
    b"\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)


def device_runtime(device: str) -> Runtime | None:
    """The runtime that computes on a device; None for the CPU, where each does."""
    if device == CPU:
        return None
    return "onnxruntime" if device.startswith("cuda") else "openvino"


def openvino_device(device: str) -> str:
    return "CPU" if device == CPU else device.removeprefix("openvino:")


def onnx_providers(device: str) -> list[str | tuple[str, dict[str, Any]]]:
    """What sessions on a device are made with; onnxruntime computes on the CPU what the device cannot, such as text."""
    if device == CPU:
        return ["CPUExecutionProvider"]
    disable_telemetry()
    import onnxruntime

    # CUDA and cuDNN, from NVIDIA's packages where these are installed; else the system's are found by the loader.
    onnxruntime.preload_dlls()
    # Warnings are about how it looks for devices, also where it finds them.
    onnxruntime.set_default_logger_severity(3)
    options = {
        "device_id": device.partition(":")[2] or "0",
        # TF32, the default of recent cards, has the precision of 11 bits: what is published as float32 was verified so.
        "use_tf32": "0",
        # Half the time for each new shape of the default, and as fast with two batches at once (H200, MobileNetV2).
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    return [(_PROVIDER, options), "CPUExecutionProvider"]


def check_session(session: InferenceSession, device: str) -> None:
    """A provider that cannot start leaves everything to the CPU, and onnxruntime goes on: here that is a LoadError."""
    if device != CPU and _PROVIDER not in session.get_providers():
        raise LoadError(f"its {_PROVIDER} did not start on {device}")


def read_device(text: str) -> str:
    """The device of the flag, once it is known to work here.

    Raises:
        ConfigurationError: It is no name of a device, or the package, the driver or the device is missing.
    """
    if _CUDA.fullmatch(text):
        _try_cuda(text)
    elif _OPENVINO.fullmatch(text):
        _find_openvino(text)
    elif text != CPU:
        raise ConfigurationError(
            f"--device={text}; expected cpu, cuda or cuda:NUMBER (such as cuda:1), or openvino: with OpenVINO's name "
            "of a device (such as openvino:GPU)."
        )
    return text


def _try_cuda(device: str) -> None:
    found = "no onnxruntime"
    if is_installed("onnxruntime"):
        disable_telemetry()
        import onnxruntime

        providers = onnxruntime.get_available_providers()
        found = f"onnxruntime {onnxruntime.__version__} with {', '.join(providers)}"
        if _PROVIDER in providers:
            options = onnx_options(1)
            # What is missing is said there and nowhere else.
            options.log_severity_level = 2
            try:
                check_session(
                    onnxruntime.InferenceSession(
                        _SMALLEST, options, providers=onnx_providers(device), enable_fallback=0
                    ),
                    device,
                )
            # onnxruntime's exceptions share no base class of their own.
            except Exception as exc:
                raise ConfigurationError(
                    f"--device={device} does not work: {found} cannot compute there ({exc}); the lines above may say "
                    "why. Expected a card of that number with its driver (nvidia-smi shows both), and the CUDA and "
                    "cuDNN that this onnxruntime was built for: pip install 'onnxruntime-gpu[cuda,cudnn]'."
                ) from exc
            return
    raise ConfigurationError(
        f"--device={device} needs onnxruntime's {_PROVIDER}; installed is {found}. Install the package that has it in "
        "place of onnxruntime: pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'; or use the "
        "image serving-gpu."
    )


def _find_openvino(device: str) -> None:
    if not is_installed("openvino"):
        raise MissingDependencyError(package="openvino", extra="openvino", purpose=f"--device={device}")
    name, found = openvino_device(device), openvino_core().available_devices
    if not any(name == each or each.startswith(f"{name}.") for each in found):
        raise ConfigurationError(
            f"--device={device}; OpenVINO finds {', '.join(found)} on this machine. Expected one of these: a device is "
            "found where its driver is installed, and in a container where it was passed in (--device /dev/dri)."
        )
