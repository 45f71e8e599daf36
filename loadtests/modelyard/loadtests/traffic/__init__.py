"""What a load test sends, and whether the answers are right."""

from modelyard.loadtests.traffic._answers import check_answer
from modelyard.loadtests.traffic._decode import Checker, decode
from modelyard.loadtests.traffic._find import find_traffic
from modelyard.loadtests.traffic._images import PAYLOADS, Images, ImageTraffic, load_images
from modelyard.loadtests.traffic._recording import Recording, read_recording
from modelyard.loadtests.traffic._requests import APIS, Arrays, Request
from modelyard.loadtests.traffic._source import Traffic

__all__ = [
    "APIS",
    "Arrays",
    "Checker",
    "ImageTraffic",
    "Images",
    "PAYLOADS",
    "Recording",
    "Request",
    "Traffic",
    "check_answer",
    "decode",
    "find_traffic",
    "load_images",
    "read_recording",
]
