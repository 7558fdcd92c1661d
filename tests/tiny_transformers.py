"""Vision models of transformers at tiny widths, with random weights: nothing is downloaded.

`written("vit", folder)` writes a folder as `save_pretrained` does, with the model's own processor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from needs import imported

T: Any = imported("transformers")

_BLOCKS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_TEXT = {
    **_BLOCKS,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_FOUR = {0: "cat", 1: "dog", 2: "emu", 3: "fox"}
SIZE = {"dinov2": 70, "depth_anything": 70}  # of 64 otherwise


def _vit() -> tuple[Any, Any]:
    config = T.ViTConfig(**_BLOCKS, image_size=64, id2label=_FOUR)
    return T.ViTForImageClassification(config), T.ViTImageProcessor(size={"height": 64, "width": 64})


def _convnext() -> tuple[Any, Any]:
    model = T.ConvNextForImageClassification(T.ConvNextConfig(**_STAGES, id2label=_FOUR))
    return model, T.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875)


def _swin() -> tuple[Any, Any]:
    config = T.SwinConfig(
        image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, id2label=_FOUR
    )
    return T.SwinForImageClassification(config), T.ViTImageProcessor(size={"height": 64, "width": 64})


def _dinov2() -> tuple[Any, Any]:
    config = T.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=70, patch_size=14
    )
    processor = T.BitImageProcessor(size={"shortest_edge": 80}, crop_size={"height": 70, "width": 70})
    return T.Dinov2Model(config), processor


def _dinov3() -> tuple[Any, Any]:
    config = T.DINOv3ViTConfig(**_BLOCKS, image_size=64)
    return T.DINOv3ViTModel(config), T.DINOv3ViTImageProcessor(size={"height": 64, "width": 64})


def _segformer() -> tuple[Any, Any]:
    config = T.SegformerConfig(
        **_STAGES, num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16, id2label=_FOUR
    )
    processor = T.SegformerImageProcessor(size={"height": 64, "width": 64})
    return T.SegformerForSemanticSegmentation(config), processor


def _detr() -> tuple[Any, Any]:
    backbone = T.ResNetConfig(**_STAGES, embedding_size=8, out_features=["stage4"])
    widths = {f"{half}_{name}": 2 for half in ("encoder", "decoder") for name in ("attention_heads",)}
    widths |= {f"{half}_ffn_dim": 32 for half in ("encoder", "decoder")}
    widths |= {f"{half}_layers": 1 for half in ("encoder", "decoder")}
    config = T.DetrConfig(
        backbone_config=backbone, d_model=32, num_queries=10, id2label=_FOUR, **widths
    )
    return T.DetrForObjectDetection(config), T.DetrImageProcessor()


def _rt_detr() -> tuple[Any, Any]:
    backbone = T.RTDetrResNetConfig(
        **_STAGES, embedding_size=8, layer_type="basic", out_features=["stage2", "stage3", "stage4"]
    )
    config = T.RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[16, 24, 32],
        decoder_in_channels=[32, 32, 32],
        d_model=32,
        encoder_hidden_dim=32,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        decoder_layers=1,
        num_queries=20,
        hidden_expansion=0.5,
        id2label=_FOUR,
    )
    return T.RTDetrForObjectDetection(config), T.RTDetrImageProcessor(size={"height": 64, "width": 64})


def _depth_anything() -> tuple[Any, Any]:
    backbone = T.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=70,
        patch_size=14,
        out_features=["stage1", "stage2", "stage3", "stage4"],
        reshape_hidden_states=False,
    )
    config = T.DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
    )
    processor = T.DPTImageProcessor(
        size={"height": 70, "width": 70}, keep_aspect_ratio=True, ensure_multiple_of=14
    )
    return T.DepthAnythingForDepthEstimation(config), processor


def _siglip() -> tuple[Any, Any]:
    config = T.SiglipConfig(vision_config={**_BLOCKS, "image_size": 64}, text_config=_TEXT)
    return T.SiglipModel(config), T.SiglipImageProcessor(size={"height": 64, "width": 64})


def _clip() -> tuple[Any, Any]:
    config = T.CLIPConfig(
        vision_config={**_BLOCKS, "image_size": 64, "patch_size": 16},
        text_config=_TEXT,
        projection_dim=24,
    )
    processor = T.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    return T.CLIPModel(config), processor


_MODELS = {
    "vit": _vit,
    "convnext": _convnext,
    "swin": _swin,
    "dinov2": _dinov2,
    "dinov3": _dinov3,
    "segformer": _segformer,
    "detr": _detr,
    "rt_detr": _rt_detr,
    "depth_anything": _depth_anything,
    "siglip": _siglip,
    "clip": _clip,
}
NAMES = tuple(_MODELS)


def written(name: str, folder: Path) -> Any:
    """The model, which lies in the folder with its processor."""
    torch.manual_seed(0)
    model, processor = _MODELS[name]()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return model
