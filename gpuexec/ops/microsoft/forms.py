"""Input and output signatures of the com.microsoft operators."""

from __future__ import annotations

from collections.abc import Mapping

from gpuexec.ir.signatures import declare_signatures
from gpuexec.ops.microsoft.activation import DOMAIN

FORMS: Mapping[str, tuple[str, str]] = {
    "Attention": ("input weights bias? mask_index? past? attention_bias? past_sequence_length?", "output present?"),
    "BiasAdd": ("X bias skip", "Y"),
    "BiasDropout": ("data bias residual? ratio? training_mode?", "output mask?"),
    "BiasGelu": ("A B", "C"),
    "BiasSoftmax": ("data bias", "output"),
    "BiasSplitGelu": ("X bias", "Y"),
    "CDist": ("A B", "C"),
    "CropAndResize": ("X rois batch_indices crop_size", "Y"),
    "DecoderMaskedMultiHeadAttention": (
        "query key? value? mask_index? attention_bias? past_key? past_value? past_sequence_length? "
        "beam_width? cache_indirection? bias?",
        "output present_key? present_value? qk?",
    ),
    "DecoderMaskedSelfAttention": (
        "input weights bias mask_index? past attention_bias? past_sequence_length beam_width? cache_indirection?",
        "output present",
    ),
    "DequantizeLinear": ("x x_scale x_zero_point?", "y"),
    "DynamicQuantizeLSTM": (
        "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
        "Y? Y_h? Y_c?",
    ),
    "DynamicQuantizeMatMul": ("A B b_scale b_zero_point? bias?", "Y"),
    "EmbedLayerNormalization": (
        "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
        "output mask_index? embedding_sum?",
    ),
    "ExpandDims": ("X axis", "Y"),
    "FastGelu": ("X bias?", "Y"),
    "FusedConv": ("X W B? Z?", "Y"),
    "FusedGemm": ("A B C?", "Y"),
    "FusedMatMul": ("A B", "Y"),
    "FusedMatMulActivation": ("A B", "Y"),
    "GatedRelativePositionBias": ("query_layer query_bias rel_pos weight bias eco_a token_offset?", "output"),
    "GatherBlockQuantized": ("data indices scales zero_points?", "output"),
    "GatherND": ("data indices", "output"),
    "Gelu": ("X", "Y"),
    "GemmFastGelu": ("X W bias?", "Y"),
    "GridSample": ("X Grid", "Y"),
    "GroupNorm": ("X gamma beta", "Y"),
    "GroupQueryAttention": (
        "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? "
        "position_ids? attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?",
        "output present_key? present_value? output_qk?",
    ),
    "Inverse": ("X", "Y"),
    "MatMulBnb4": ("A B absmax", "Y"),
    "MatMulIntegerToFloat": ("A B a_scale b_scale a_zero_point? b_zero_point? bias?", "Y"),
    "MatMulNBits": ("A B scales zero_points? g_idx? bias?", "Y"),
    "MultiHeadAttention": (
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? "
        "past_sequence_length? cache_indirection?",
        "output present_key? present_value? qk?",
    ),
    "MurmurHash3": ("X", "Y"),
    "NhwcConv": ("X W B?", "Y"),
    "NhwcFusedConv": ("X W B? Z?", "Y"),
    "NhwcMaxPool": ("x", "y"),
    "PackedAttention": ("input weights bias token_offset cumulative_sequence_length attention_bias?", "output"),
    "PackedMultiHeadAttention": (
        "query key? value? bias? token_offset cumulative_sequence_length attention_bias?",
        "output",
    ),
    "Pad": ("data pads value?", "output"),
    "QAttention": (
        "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
        "output present?",
    ),
    "QEmbedLayerNormalization": (
        "input_ids segment_ids? word_embedding_quant position_embedding_quant segment_embedding? "
        "gamma_quant beta_quant mask? word_embedding_scale position_embedding_scale "
        "segment_embedding_scale? gamma_scale beta_scale word_embedding_zero_point "
        "position_embedding_zero_point segment_embedding_zero_point? gamma_zero_point beta_zero_point",
        "layernorm_out mask_index_out",
    ),
    "QGemm": ("A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?", "Y"),
    "QLinearAdd": ("A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?", "C"),
    "QLinearAveragePool": ("X x_scale x_zero_point? y_scale y_zero_point?", "Y"),
    "QLinearConcat": ("Y_scale Y_zero_point inputs*", "Y"),
    "QLinearConv": ("x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?", "y"),
    "QLinearGlobalAveragePool": ("X x_scale x_zero_point y_scale y_zero_point", "Y"),
    "QLinearLeakyRelu": ("X X_scale X_zero_point? Y_scale Y_zero_point?", "Y"),
    "QLinearMatMul": ("a a_scale a_zero_point b b_scale b_zero_point y_scale y_zero_point", "y"),
    "QLinearMul": ("A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?", "C"),
    "QLinearReduceMean": ("data data_scale data_zero_point? reduced_scale reduced_zero_point?", "reduced"),
    "QLinearSigmoid": ("X X_scale X_zero_point? Y_scale Y_zero_point?", "Y"),
    "QLinearSoftmax": ("X X_scale x_zero_point? y_scale y_zero_point", "Y"),
    "QLinearWhere": ("condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point", "Z"),
    "QOrderedAttention": (
        "input scale_input scale_Q_gemm scale_K_gemm scale_V_gemm Q_weight K_weight V_weight scale_Q_weight "
        "scale_K_weight scale_V_weight Q_bias K_bias V_bias scale_QKT_gemm? scale_QKT_softmax? scale_values_gemm "
        "mask_index? past? attention_bias?",
        "output",
    ),
    "QOrderedGelu": ("X scale_X scale_Y", "Y"),
    "QOrderedLayerNormalization": ("X scale_X scale B? scale_Y", "Y"),
    "QOrderedMatMul": ("A scale_A B scale_B scale_Y bias? C? scale_C?", "Y"),
    "QuantizeLinear": ("x y_scale y_zero_point?", "y"),
    "QuickGelu": ("X", "Y"),
    "Range": ("start limit delta?", "Y"),
    "RelativePositionBias": ("bias_table query_length key_length", "output"),
    "RemovePadding": ("input sequence_token_count", "output token_offset cumulated_seq_len max_seq_len"),
    "RestorePadding": ("input token_offset", "output"),
    "RotaryEmbedding": ("input position_ids cos_cache sin_cache", "output"),
    "SampleOp": ("X", "Y"),
    "SkipGroupNorm": ("X gamma beta skip bias?", "Y S?"),
    "SkipLayerNormalization": ("input skip gamma beta? bias?", "output mean? inv_std_var? input_skip_bias_sum?"),
    "SkipSimplifiedLayerNormalization": ("input skip gamma bias?", "output mean? inv_std_var? input_skip_bias_sum?"),
    "Solve": ("A Y", "X"),
    "Tokenizer": ("X", "Y"),
    "TransposeMatMul": ("A B", "Y"),
    "Trilu": ("X k?", "Y"),
    "Unique": ("x", "y idx counts"),
}
declare_signatures(DOMAIN, FORMS)
