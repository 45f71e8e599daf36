"""Specifications for managed clouds: a training job and a served model for Google, AWS and Azure."""

from modelyard.deploy._aws import AwsOptions, render_aws, send_aws
from modelyard.deploy._azure import AzureOptions, render_azure
from modelyard.deploy._google import GoogleOptions, render_google
from modelyard.deploy._options import CommonOptions, Documents

__all__ = [
    "AwsOptions",
    "AzureOptions",
    "CommonOptions",
    "Documents",
    "GoogleOptions",
    "render_aws",
    "render_azure",
    "render_google",
    "send_aws",
]
