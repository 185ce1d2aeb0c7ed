"""Operators of ai.onnx.ml, and TfIdfVectorizer: trees, support vectors, linear models, feature preparation."""

from gpuexec.ops.ml import feature_extractor as feature_extractor
from gpuexec.ops.ml import feature_rows as feature_rows
from gpuexec.ops.ml import features as features
from gpuexec.ops.ml import label_encoder as label_encoder
from gpuexec.ops.ml import linear as linear
from gpuexec.ops.ml import maps as maps
from gpuexec.ops.ml import one_hot_encoder as one_hot_encoder
from gpuexec.ops.ml import svm as svm
from gpuexec.ops.ml import tfidf as tfidf
from gpuexec.ops.ml import trees as trees
from gpuexec.ops.ml import trees_legacy as trees_legacy
