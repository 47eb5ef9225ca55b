"""A vhost's firehose: switched, watched, and recorded as events."""
