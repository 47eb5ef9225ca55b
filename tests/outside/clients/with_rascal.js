// rascal: the objects, publications and recoveries of its shipped example, under their own names.
// Changed are the address, the wait of its delay queue, the attempts, and the counter's process.
// A failed message is forwarded into the delay exchange, and comes back by a CC key that names its
// queue. What is given up is published into its queue once more, and rejected when it is read.

"use strict";

const rascal = require("rascal");
const example = require("rascal/examples/advanced/config").rascal;

const { DELAYED, fails, run, write } = require("./order");

const QUEUE = "registration_service:user:save";
const KEY = "registration_webapp.user.created";

function configure({ url, waitMs, rounds, prefix }) {
  const vhost = { ...example.vhosts["customer-vhost"], assert: false, connections: [{ url }] };
  vhost.queues["delay:1m"].options.arguments["x-message-ttl"] = waitMs;
  vhost.publications.user_event = {
    exchange: "service",
    options: { appId: prefix },
  };
  example.redeliveries.counters.shared.type = "inMemory";
  example.recovery.deferred_retry[0].attempts = rounds;
  const name = new URL(url).pathname.slice(1);
  return rascal.withDefaultConfig({ ...example, vhosts: { [name]: vhost } });
}

// Return the id of what was confirmed.
function confirmed(publication) {
  return new Promise((done, failed) => {
    publication.on("success", done).on("error", failed).on("return", failed);
  });
}

async function main(order) {
  const broker = await rascal.BrokerAsPromised.create(configure(order));
  broker.on("error", (error) => process.stderr.write(`${error.stack}\n`));
  const { deferred_retry: deferred, dead_letter: dead } = broker.config.recovery;
  const due = {};

  function work(message, kind, ackOrNack) {
    const id = message.properties.messageId;
    const attempt = (message.properties.headers.rascal.recovery?.[QUEUE]?.forwarded ?? 0) + 1;
    write("attempt", id, attempt, due[id]);
    if (!fails(order, kind, attempt)) {
      ackOrNack();
      write("done", id, attempt);
    } else if (attempt > order.rounds) {
      ackOrNack(new Error(`${kind} order`), dead);
      write("gave up", id, attempt);
    } else {
      due[id] = Date.now() + order.waitMs;
      ackOrNack(new Error(`${kind} order`), deferred);
      write("retrying", id, attempt, due[id]);
    }
  }

  if (order.isConsuming) {
    const subscription = await broker.subscribe("save_user");
    subscription.on("message", work).on("error", () => {});
  }
  write("ready");
  for (const [number, kind] of order.atOnce.entries()) {
    const publication = await broker.publish("user_event", kind, `${KEY}.${number}`);
    write("published", await confirmed(publication));
  }
  for (const wait of order.delaysMs) {
    if (wait !== order.waitMs) throw new Error(`The example delays by ${order.waitMs} only.`);
    const options = { CC: ["delay.1m", `${QUEUE}.${KEY}`] };
    const start = Date.now() + wait;
    const overrides = { routingKey: KEY, options };
    const publication = await broker.publish("retry_in_1m", DELAYED, overrides);
    const id = await confirmed(publication);
    due[id] = start;
    write("published", id, 0, start);
  }
  return () => broker.shutdown();
}

run(main);
