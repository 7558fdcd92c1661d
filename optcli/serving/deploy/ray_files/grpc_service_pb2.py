"""The name that `tritonclient` gives to the module of its messages, under which Ray passes them on."""

from tritonclient.grpc.service_pb2 import *  # noqa: F403
