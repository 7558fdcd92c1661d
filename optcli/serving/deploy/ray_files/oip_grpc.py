"""The Open Inference Protocol v2 over gRPC: its messages become the same requests as those over HTTP.

Ray's proxy listens, and calls the method of the replica that has the name of the call. The messages and
the service are those of `tritonclient`.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from oip import NAMES, InferRequest, Refused
from ray.serve.grpc_util import RayServegRPCContext
from tritonclient.grpc import service_pb2 as messages

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# Where a message holds numbers by themselves, and not as bytes.
_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class Calls:
    """The calls of the protocol, for the deployment of app.py."""

    protocol: Any
    metrics: Any
    pages: Any

    async def ServerLive(self, request: Any) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any) -> Any:
        return messages.ServerReadyResponse(ready=self.is_ready())

    async def ModelReady(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._description(
            grpc_context, request, {"ready": self.is_ready()}, messages.ModelReadyResponse
        )

    async def ServerMetadata(self, request: Any) -> Any:
        return _message(self.pages["/v2"], messages.ServerMetadataResponse())

    async def ModelMetadata(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        about = self.pages[f"/v2/models/{self.protocol.name}"]
        return self._description(grpc_context, request, about, messages.ModelMetadataResponse)

    async def ModelConfig(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        about = {"config": self.pages[f"/v2/models/{self.protocol.name}/config"]}
        return self._description(grpc_context, request, about, messages.ModelConfigResponse)

    async def ModelStatistics(self, request: Any) -> Any:
        return _message(self.metrics.statistics(), messages.ModelStatisticsResponse())

    async def RepositoryIndex(self, request: Any) -> Any:
        return _message(
            {"models": self.pages["/v2/repository/index"]}, messages.RepositoryIndexResponse()
        )

    async def ModelInfer(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        try:
            with self.metrics.request():
                return await self._answered(request)
        except Refused as refused:
            return _refused(grpc_context, refused, messages.ModelInferResponse())

    def _description(self, context: RayServegRPCContext, request: Any, about: Any, kind: Any) -> Any:
        try:
            self._require(request.name, request.version)
            return _message(about, kind())
        except Refused as refused:
            return _refused(context, refused, kind())

    def _require(self, name: str, version: str) -> None:
        if name != self.protocol.name or version not in {"", "1"}:
            raise Refused(404, f"there is no such model; the model is {self.protocol.name}")

    async def _answered(self, request: Any) -> Any:
        self._require(request.model_name, request.model_version)
        deadline, call = self.deadline(), self._read(request)
        outputs = await self.outputs(call, deadline)
        answer = messages.ModelInferResponse(
            model_name=self.protocol.name, model_version="1", id=call.id
        )
        for name in call.binary:
            array = np.ascontiguousarray(outputs[name])
            answer.outputs.add(name=name, datatype=NAMES[array.dtype], shape=array.shape)
            answer.raw_output_contents.append(array.tobytes())
        return answer

    def _read(self, request: Any) -> InferRequest:
        """The request in a message. Raises `Refused` for what does not fit the model."""
        feed: dict[str, np.ndarray] = {}
        raw = list(request.raw_input_contents)
        if raw and len(raw) != len(request.inputs):
            raise Refused(400, f"{len(request.inputs)} inputs have {len(raw)} raw contents")
        for number, tensor in enumerate(request.inputs):
            field = _FIELDS.get(tensor.datatype, "bytes_contents")
            data = raw[number] if raw else list(getattr(tensor.contents, field))
            self.protocol.take(feed, tensor.name, tensor.datatype, list(tensor.shape), data)
        wanted = [self.protocol.output(each.name, each.parameters) for each in request.outputs]
        return self.protocol.checked(feed, dict.fromkeys(wanted, True), request.id)


def _refused(context: RayServegRPCContext, refused: Refused, answer: Any) -> Any:
    context.set_code(_CODES.get(refused.status, grpc.StatusCode.INTERNAL))
    context.set_details(refused.sentence)
    return answer


def _message(content: dict[str, Any], empty: Any) -> Any:
    return json_format.ParseDict(content, empty, ignore_unknown_fields=True)
