"""Encoders: BERT and its kin. RoBERTa counts positions from 2 on, for its pad is 1."""

from dataclasses import replace

from regard.convert.tables.table import ANGLES, BRACKETS, Foreign, Top

ACTIVATIONS = "gelu gelu_new>gelu_tanh gelu_pytorch_tanh>gelu_tanh relu silu swish>silu"
POOLED = {"kind": "vector", "hidden": "tanh"}
MEAN = {"kind": "vector", "pool": "mean"}
CLASSES, TAGS, SPANS = {"kind": "classes", "hidden": "tanh"}, {"kind": "tags"}, {"kind": "spans"}
OUTER, QUESTIONS = "output.outer.*  classifier.*\n", "output.outer.*  qa_outputs.*\n"
POOLER = "output.inner.*  bert.pooler.dense.*\n"
PREDICTIONS = """
output.inner.*        cls.predictions.transform.dense.*
output.norm.*         cls.predictions.transform.LayerNorm.*
output.tokens.weight  cls.predictions.decoder.weight|bert.embeddings.word_embeddings.weight
output.tokens.bias    cls.predictions.bias|cls.predictions.decoder.bias
"""
RELATION = """
output.relation.inner.*  bert.pooler.dense.*
output.relation.outer.*  cls.seq_relationship.*
"""
HIDDEN = f'hidden  hidden_act="gelu": {ACTIVATIONS}\n'
DROPOUT = "dropout  classifier_dropout=1*hidden_dropout_prob\n"
BERT = Foreign(
    "bert",
    "encoder",
    (
        Top("BertForPreTraining", {"relation": 2}, PREDICTIONS + RELATION, HIDDEN),
        Top("BertForMaskedLM", {}, PREDICTIONS, HIDDEN),
        Top("BertForSequenceClassification", CLASSES, POOLER + OUTER, DROPOUT),
        Top("BertForTokenClassification", TAGS, OUTER, DROPOUT),
        Top("BertForQuestionAnswering", SPANS, QUESTIONS),
        Top("BertModel", POOLED, POOLER),
        Top("BertModel", MEAN),
    ),
    f"""
vocabulary         vocab_size
layers             num_hidden_layers
d_model            hidden_size
d_ff               intermediate_size
heads              num_attention_heads
max_length         max_position_embeddings
segments           type_vocab_size
feed_forward       hidden_act="gelu": {ACTIVATIONS}
norm_eps           layer_norm_eps=1e-12
dropout            hidden_dropout_prob=0.1
attention_dropout  attention_probs_dropout_prob=0.1
""",
    fixed={},
    base="bert.",
    constant={"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True}
    | {"position_embedding_type": "absolute"},
    marks={"pad": "pad_token_id?"},
    special=BRACKETS,
    around="frame",
    tensors="""
stem.tokens.weight                                          bert.embeddings.word_embeddings.weight
stem.positions.table                                        bert.embeddings.position_embeddings.weight
stem.segments.weight                                        bert.embeddings.token_type_embeddings.weight
stem.norm.*                                                 bert.embeddings.LayerNorm.*
encoder.layers.#.self_attention.sublayer.query_key_value.*  bert.encoder.layer.#.attention.self.{query,key,value}.*
encoder.layers.#.self_attention.sublayer.output.*           bert.encoder.layer.#.attention.output.dense.*
encoder.layers.#.self_attention.norm.*                      bert.encoder.layer.#.attention.output.LayerNorm.*
encoder.layers.#.feed_forward.sublayer.inner.*              bert.encoder.layer.#.intermediate.dense.*
encoder.layers.#.feed_forward.sublayer.outer.*              bert.encoder.layer.#.output.dense.*
encoder.layers.#.feed_forward.norm.*                        bert.encoder.layer.#.output.LayerNorm.*
""",
)
ROBERTA = replace(
    BERT,
    name="roberta",
    tops=(
        Top(
            "RobertaForMaskedLM",
            {"hidden": "gelu"},
            """
output.inner.*        lm_head.dense.*
output.norm.*         lm_head.layer_norm.*
output.tokens.weight  lm_head.decoder.weight|roberta.embeddings.word_embeddings.weight
output.tokens.bias    lm_head.bias|lm_head.decoder.bias
""",
        ),
        Top(
            "RobertaForSequenceClassification",
            CLASSES,
            "output.inner.*  classifier.dense.*\noutput.outer.*  classifier.out_proj.*\n",
            DROPOUT,
        ),
        Top("RobertaForTokenClassification", TAGS, OUTER, DROPOUT),
        Top("RobertaForQuestionAnswering", SPANS, QUESTIONS),
        Top("RobertaModel", POOLED, POOLER.replace("bert.", "roberta.")),
        Top("RobertaModel", MEAN),
    ),
    settings=BERT.settings + "max_length  max_position_embeddings-2\n",
    fixed={"pad": 1},
    base="roberta.",
    constant=BERT.constant | {"pad_token_id": 1},
    special=ANGLES,
    tensors=BERT.tensors.replace("bert.", "roberta.").replace(
        "position_embeddings.weight", "position_embeddings.weight offset:2"
    ),
)
XLM = replace(ROBERTA, name="xlm-roberta", tops=tuple(replace(top, name=f"XLM{top.name}") for top in ROBERTA.tops))
DISTILBERT = replace(
    BERT,
    name="distilbert",
    tops=(
        Top(
            "DistilBertForMaskedLM",
            {},
            """
output.inner.*        vocab_transform.*
output.norm.*         vocab_layer_norm.*
output.tokens.weight  vocab_projector.weight|distilbert.embeddings.word_embeddings.weight
output.tokens.bias    vocab_projector.bias
""",
            HIDDEN.replace("hidden_act", "activation"),
        ),
        Top(
            "DistilBertForSequenceClassification",
            CLASSES | {"hidden": "relu"},
            "output.inner.*  pre_classifier.*\n" + OUTER,
            "dropout  seq_classif_dropout=0.2\n",
        ),
        Top("DistilBertForTokenClassification", TAGS, OUTER, "dropout  dropout=0.1\n"),
        Top("DistilBertForQuestionAnswering", SPANS, QUESTIONS, "dropout  qa_dropout=0.1\n"),
        Top("DistilBertModel", MEAN),
    ),
    settings=f"""
vocabulary         vocab_size
layers             n_layers
d_model            dim
d_ff               hidden_dim
heads              n_heads
max_length         max_position_embeddings
feed_forward       activation="gelu": {ACTIVATIONS}
dropout            dropout=0.1
attention_dropout  attention_dropout=0.1
""",
    fixed={"segments": None},
    base="distilbert.",
    constant={"tie_word_embeddings": True},
    tensors="""
stem.tokens.weight                                          distilbert.embeddings.word_embeddings.weight
stem.positions.table                                        distilbert.embeddings.position_embeddings.weight
stem.norm.*                                                 distilbert.embeddings.LayerNorm.*
encoder.layers.#.self_attention.sublayer.query_key_value.*  distilbert.transformer.layer.#.attention.{q,k,v}_lin.*
encoder.layers.#.self_attention.sublayer.output.*           distilbert.transformer.layer.#.attention.out_lin.*
encoder.layers.#.self_attention.norm.*                      distilbert.transformer.layer.#.sa_layer_norm.*
encoder.layers.#.feed_forward.sublayer.inner.*              distilbert.transformer.layer.#.ffn.lin1.*
encoder.layers.#.feed_forward.sublayer.outer.*              distilbert.transformer.layer.#.ffn.lin2.*
encoder.layers.#.feed_forward.norm.*                        distilbert.transformer.layer.#.output_layer_norm.*
""",
)
SUMMARY = "output.inner.*  albert.pooler.*\n"
WORDS = """
output.inner.*        predictions.dense.*
output.norm.*         predictions.LayerNorm.*
output.tokens.weight  predictions.decoder.weight|albert.embeddings.word_embeddings.weight
output.tokens.bias    predictions.bias|predictions.decoder.bias
"""
ORDER = """
output.relation.inner.*  albert.pooler.*
output.relation.outer.*  sop_classifier.classifier.*
"""
LEFT = "dropout  classifier_dropout_prob=0.1\n"
ALBERT = replace(
    BERT,
    name="albert",
    tops=(
        Top("AlbertForPreTraining", {"relation": 2}, WORDS + ORDER, HIDDEN),
        Top("AlbertForMaskedLM", {}, WORDS, HIDDEN),
        Top("AlbertForSequenceClassification", CLASSES, SUMMARY + OUTER, LEFT),
        Top("AlbertForTokenClassification", TAGS, OUTER, LEFT),
        Top("AlbertForQuestionAnswering", SPANS, QUESTIONS),
        Top("AlbertModel", POOLED, SUMMARY),
        Top("AlbertModel", MEAN),
    ),
    settings=BERT.settings + "d_embedding  embedding_size\n",
    fixed={"shared": True},
    base="albert.",
    constant={"num_hidden_groups": 1, "inner_group_num": 1, "tie_word_embeddings": True},
    special=BRACKETS | {"pad": "<pad>", "unk": "<unk>"},
    tensors="""
stem.tokens.weight    albert.embeddings.word_embeddings.weight
stem.positions.table  albert.embeddings.position_embeddings.weight
stem.segments.weight  albert.embeddings.token_type_embeddings.weight
stem.norm.*           albert.embeddings.LayerNorm.*
stem.widen.*          albert.encoder.embedding_hidden_mapping_in.*
encoder.layers.#.self_attention.sublayer.query_key_value.*  LAYER.attention.{query,key,value}.*
encoder.layers.#.self_attention.sublayer.output.*           LAYER.attention.dense.*
encoder.layers.#.self_attention.norm.*                      LAYER.attention.LayerNorm.*
encoder.layers.#.feed_forward.sublayer.inner.*              LAYER.ffn.*
encoder.layers.#.feed_forward.sublayer.outer.*              LAYER.ffn_output.*
encoder.layers.#.feed_forward.norm.*                        LAYER.full_layer_layer_norm.*
""".replace("LAYER", "albert.encoder.albert_layer_groups.0.albert_layers.0"),
)
VECTORS = Foreign(  # of words, as `convert.vectors` reads them
    "vectors",
    "encoder",
    (Top("Vectors", MEAN | {"normalise": True}),),
    "vocabulary  vocab_size\nd_model  d_model\n",
    fixed={"layers": 0, "d_ff": 1, "heads": 1, "positions": "none", "segments": None, "embedding_norm": False}
    | {"dropout": 0.0, "attention_dropout": 0.0},
    marks={"pad": "pad_token_id?"},
    special=BRACKETS,
    around="frame",
    out=False,
    tensors="stem.tokens.weight  stem.tokens.weight\n",
)

TABLES = (ALBERT, DISTILBERT, ROBERTA, XLM, BERT, VECTORS)  # where two fit, the first is written
