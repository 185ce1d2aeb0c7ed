// Kinds of masks of attention, and of rows without keys.
#pragma once

// Which of the element types a mask has; a bool says which keys take part, all others are added to the scores.
enum MaskKind { kNoMask, kBool, kHalf, kBf16, kFloat, kDouble, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64 };

// What a row gives whose scores are all -inf: zeros, as ONNX's Attention has it; NaN, as a softmax has it; or zeros, as
// does any row whose weights are NaN.
enum EmptyRows { kZero, kNan, kGuarded };
