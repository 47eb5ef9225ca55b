"""The results of the nightly jobs: loaded for a day, merged for a range, and told in sentences."""
