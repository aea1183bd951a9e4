"""Encoders of graphs: chytorch's, as `convert.rxnmap` reads it."""

from regard.convert.tables.table import Foreign, Top

CHYTORCH = Foreign(
    "chytorch",
    "graph",
    (Top("MoleculeEncoder", {"kind": "vector", "pool": "first"}),),
    """
vocabulary  vocab_size
layers      layers
d_model     d_model
d_ff        d_ff
heads       heads
distances   distances
across      across
""",
    fixed={"virtual": True, "shared": True, "across_heads": 4, "norm": "post", "feed_forward": "gelu"},
    marks={},
    out=False,
    tensors="""
stem.tokens.weight                                          stem.tokens.weight
stem.virtual                                                stem.virtual
between.distance.weight                                     between.distance.weight
sides.weight                                                sides.weight
encoder.layers.#.self_attention.sublayer.query_key_value.*  molecule_encoder.layer.self_attn.in_proj_*
encoder.layers.#.self_attention.sublayer.output.*           molecule_encoder.layer.self_attn.out_proj.*
encoder.layers.#.self_attention.norm.*                      molecule_encoder.layer.norm1.*
encoder.layers.#.feed_forward.sublayer.inner.*              molecule_encoder.layer.linear1.*
encoder.layers.#.feed_forward.sublayer.outer.*              molecule_encoder.layer.linear2.*
encoder.layers.#.feed_forward.norm.*                        molecule_encoder.layer.norm2.*
across.layers.#.self_attention.sublayer.query_key_value.*   layer.self_attn.in_proj_*
across.layers.#.self_attention.sublayer.output.*            layer.self_attn.out_proj.*
across.layers.#.self_attention.norm.*                       layer.norm1.*
across.layers.#.feed_forward.sublayer.inner.*               layer.linear1.*
across.layers.#.feed_forward.sublayer.outer.*               layer.linear2.*
across.layers.#.feed_forward.norm.*                         layer.norm2.*
""",
)

TABLES = (CHYTORCH,)
