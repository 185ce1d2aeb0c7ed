"""Operators emitted by ONNX Runtime's optimizers: those run here, and those left out, each with the reason.

The lists follow docs/ContribOperators.md, the graph optimizer and the fusions of the transformer optimizer of
onnxruntime 1.31. Operators of its quantizers are listed beside their tests.
"""

from __future__ import annotations

EMITTED = (
    *("Attention", "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu"),
    *("DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention", "EmbedLayerNormalization", "ExpandDims"),
    *("FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", "GatedRelativePositionBias"),
    *("GatherND", "Gelu", "GemmFastGelu", "GridSample", "GroupNorm", "GroupQueryAttention", "MultiHeadAttention"),
    *("NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "PackedAttention", "PackedMultiHeadAttention", "Pad", "QuickGelu"),
    *("QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedMatMul"),
    *("Range", "RelativePositionBias", "RemovePadding", "RestorePadding", "RotaryEmbedding", "SkipGroupNorm"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "TransposeMatMul", "Trilu", "Unique"),
)
# Operators of the domain that exporters wrote before ONNX had the like, and those of skl2onnx.
FURTHER = ("CropAndResize", "Inverse", "SampleOp", "CDist", "MurmurHash3", "Solve", "Tokenizer")
# Operators that stand in ai.onnx, where ONNX has none of that name.
EMITTED_IN_ONNX = ("SimplifiedLayerNormalization",)
LEFT_OUT = {
    "BeamSearch": "a search over whole models, which the generator of such models makes, no optimizer",
    "GreedySearch": "a search over whole models, which the generator of such models makes, no optimizer",
    "Sampling": "a search over whole models, which the generator of such models makes, no optimizer",
    "WhisperBeamSearch": "a search over whole models, which the generator of such models makes, no optimizer",
    "DynamicTimeWarping": "for the times of Whisper's words, which the generator of such models adds, no optimizer",
    "UnfoldTensor": "for the times of Whisper's words, which the generator of such models adds, no optimizer",
    "PagedAttention": "for servers that keep pages of many requests; onnxruntime runs it on GPUs alone",
}
