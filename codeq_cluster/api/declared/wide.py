"""Wide: the type of integers that may need more than 32 bits, which the document says of each.

Without it, generators for Java, C# and others read them as 32 bits.
"""

from typing import Annotated

from msgspec import Meta

INT64 = {"format": "int64"}
Int64 = Annotated[int, Meta(extra_json_schema=INT64)]
