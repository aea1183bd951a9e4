"""Classes of Hugging Face's as members of our families, a file for each family. Begin with `table`."""

from regard.convert.tables import captioner, decoder, encoder, graph, pair, seer, transformer, vision
from regard.convert.tables.table import Foreign as Foreign
from regard.convert.tables.table import Top as Top

FILES = (transformer, decoder, encoder, vision, pair, captioner, seer, graph)
TABLES = {table.name: table for file in FILES for table in file.TABLES}
