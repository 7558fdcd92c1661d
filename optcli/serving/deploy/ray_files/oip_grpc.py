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

    async def ServerLive(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("ServerLive", request, grpc_context, "/v2/health/live")

    async def ServerReady(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("ServerReady", request, grpc_context, "/v2/health/ready")

    async def ServerMetadata(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("ServerMetadata", request, grpc_context, "/v2")

    async def RepositoryIndex(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("RepositoryIndex", request, grpc_context, "/v2/repository/index", "models")

    async def ModelReady(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("ModelReady", request, grpc_context, f"{self.protocol.path}/ready")

    async def ModelMetadata(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("ModelMetadata", request, grpc_context, self.protocol.path)

    async def ModelConfig(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        path = f"{self.protocol.path}/config"
        return self._said("ModelConfig", request, grpc_context, path, "config")

    async def ModelStatistics(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        return self._said("ModelStatistics", request, grpc_context, "/v2/models/stats")

    async def ModelInfer(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        try:
            with self.metrics.request():
                return await self._answered(request)
        except Refused as refused:
            return _refused(grpc_context, refused, messages.ModelInferResponse())

    def _said(self, call: str, request: Any, context: Any, path: str, key: str = "") -> Any:
        """What the page of a path says, as a call's answer, where the request names no other model."""
        answer = getattr(messages, f"{call}Response")()
        try:
            if name := getattr(request, "name", ""):
                self._require(name, request.version)
            if path not in self.pages:
                raise Refused(404, f"this server has no page {path}")
            content = self.pages[path]()
            said = {key: content} if key else content
            return json_format.ParseDict(said, answer, ignore_unknown_fields=True)
        except Refused as refused:
            return _refused(context, refused, answer)

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
