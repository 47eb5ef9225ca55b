"""What each figure of a report means, in one sentence: shown on the page, listed in the docs."""

from __future__ import annotations

DEFINITIONS = {
    "on_time": (
        "Share of measured deliveries that left their delay at most 1 s after they were due, or "
        "within the target of the selected topology."
    ),
    "lateness": (
        "Lateness is the recorded exit time minus the due time (recorded entry plus requested "
        "delay). Percentiles are computed from added histograms and are at most 28 % too high or "
        "too low; below 1 ms they are 0."
    ),
    "late_hours": (
        "Lateness of all measured deliveries, by the hour of the day in which the message entered "
        "its delay. Percentiles are at most 28 % too high or too low."
    ),
    "delays": (
        "Lateness of all measured deliveries, by the requested delay on a logarithmic scale. "
        "Percentiles are at most 28 % too high or too low."
    ),
    "probes": (
        "Lateness of probes, small messages of Delayboard on the path of real ones, by requested "
        "delay. Probes are in no other figure and in no service level objective. Not measured: "
        "read from a backlog. Percentiles are at most 28 % too high or too low."
    ),
    "distribution": (
        "Measured deliveries by lateness, ten buckets for each factor of ten. Early means more "
        "than 50 ms before the due time; on time means less than 1 ms late."
    ),
    "uncounted": (
        "Deliveries whose lateness could not be measured. Each is counted under one reason, the "
        "first that is true."
    ),
    "exact": (
        "Exact percentiles of one day, by topology and requested delay, for the delays with the "
        "most measured deliveries."
    ),
    "survival": (
        "Share of the messages that failed at least once and still fail after each attempt "
        "(Kaplan-Meier estimate). An attempt counts on the UTC day on which it ended. Messages "
        "that still wait are censored. Exhausted messages were parked or died. Messages without an "
        "id are excluded."
    ),
    "failures": (
        "Share of messages that were retried at least once, by the hour of the day in which the "
        "message was first recorded. Messages without an id have no hour."
    ),
    "recovered": (
        "Share of the retried messages that left their last attempt and did not fail again, as far "
        "as the event log went when the day was computed. Messages that still wait are excluded."
    ),
    "recovery": (
        "Time from the first failure to the last exit, of messages that recovered on the day, at "
        "most 28 % too high or too low. A failure of an earlier day is timed by x-death. Attempts "
        "per message are the retries divided by the messages that were retried."
    ),
    "causes": (
        "Recorded failures by queue, reason, exception and routing key, in which ids and numbers "
        "are replaced. The 500 most frequent causes of each day are counted."
    ),
    "groups": (
        "Retried messages by queue, reason, exception, routing key (ids and numbers are replaced), "
        "publisher and version header of their first failure on a day: attempts, outcome, and the "
        "share that still fails after so many attempts. Messages, and the share that failed, are "
        "known by publisher and version. The largest groups of each day are counted."
    ),
    "dead_letters": (
        "Dead letters by UTC day and reason of the last death. Arrived: a message counts as often "
        "as a tap recorded its death or as it was parked, whichever is more. Without a tap, a "
        "message counts only when it is parked. A message that is parked on a later day than its "
        "recorded death counts on both days."
    ),
    "handled": (
        "Dead letters that arrived, and that Delayboard parked, replayed and discarded, by the "
        "queue in which they died last, reason and exception."
    ),
    "replays": (
        "Replays by outcome: dead-lettered again (another recorded death, or parked again later), "
        "delivered (a recorded exit from a delay) or not observed, as far as the event log went "
        "when the day was computed."
    ),
    "ages": (
        "Replays by the time since the first death that x-death states, else since the message was "
        "parked on the same day. Replays without both are excluded."
    ),
    "heat": (
        "Share of messages that were retried, by weekday and hour in which the message was first "
        "recorded."
    ),
    "throughput": (
        "Messages that entered a delay by hour of the day, in all and per day; how many wait in "
        "delays at the end of the hour (mean of the days). A message without a recorded exit waits "
        "until it is due, and at most 31 days are counted."
    ),
    "unexplained": "Scheduled messages that were due and have no recorded end.",
    "ledger": (
        "Each scheduled message is delivered, died (or was parked), cancelled, waiting or "
        "unexplained. Unexplained means due, with no recorded end. Where deliveries are not "
        "observed, these messages count as not observed instead."
    ),
    "topologies": (
        "Sums of the range by topology, the highest daily p99 first. The table has at most 25 rows."
    ),
    "slo": (
        "Attainment is the share of measured deliveries within the target. The error budget is the "
        "share of deliveries that may be late, over the 28 days up to the last day of the range. A "
        "burn rate of 1 uses it up in 28 days."
    ),
}
