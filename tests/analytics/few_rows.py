"""Settings of Spark for tests, whose logs have few rows."""

from __future__ import annotations

# To compile Java for each query, as the real program does, takes longer than to interpret it.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
FEW = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    **INTERPRETED,
}
# What a Spark of the real program reads from SPARK_SUBMIT_OPTS.
JAVA_OPTIONS = " ".join(f"-D{name}={value}" for name, value in INTERPRETED.items())
