"""The results of the nightly jobs: loaded for a day, merged for a range, summarized as text."""
