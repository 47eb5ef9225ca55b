"""`python -m tests.analytics.importing.parquet LINES OUT`: Spark writes them as a Parquet folder.

Partitioned by the broker, whose name looks like a number, and in two schemas: of the second half
the newest three fields are not known.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as f

from analytics.events import FIELDS
from analytics.jobs import schema, session


def main(lines: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        spark = session.start("parquet", scratch=Path(scratch), input_bytes=0)
        columns = schema.line_schema(tuple(FIELDS))
        rows = spark.read.json(schema.as_it_is(Path(lines)), schema=columns).drop(schema.CORRUPT)
        is_old = f.col("message_id") == "old"
        older = rows.where(is_old).drop(*list(FIELDS)[-3:])
        rows.where(~is_old).write.partitionBy("broker").parquet(out)
        older.write.mode("append").partitionBy("broker").parquet(out)
        session.stop_context(spark)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
