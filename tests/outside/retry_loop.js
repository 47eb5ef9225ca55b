// A publisher and a consumer as Node services have them, for a retry loop: one JSON object a line.
//   node retry_loop.js publish URL EXCHANGE ID...
//   node retry_loop.js consume URL QUEUE PARKING TIMES
// The consumer rejects what it gets TIMES times. Then it acks, or moves an id that begins with
// "bad" to PARKING with its headers as they are. It ends with its standard input.

"use strict";

const amqp = require("amqplib");

// "end" was cut within an emoji: JavaScript has such strings, and writes them as U+FFFD.
const HEADERS = {
  text: "größer 🐇",
  cut: "end \ud83d",
  integer: 42,
  large: 2 ** 40,
  negative: -1,
  float: 1.5,
  yes: true,
  no: false,
  nothing: null,
  list: [1, "two", { three: 3 }],
  nested: { inner: { tenant: "a", at: { "!": "timestamp", value: 1700000000 } } },
  bytes: Buffer.from([0, 255]),
  // Written as an empty table.
  date: new Date(0),
};

const BODY = Buffer.from(JSON.stringify({ emoji: "🐇", cut: "\ud83d", when: new Date(0) }));

function write(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

function shown({ fields, properties, content }) {
  return { fields, properties, body: content.toString("base64") };
}

async function publish(connection, exchange, ...ids) {
  const channel = await connection.createConfirmChannel();
  for (const id of ids) {
    const stated = { messageId: id, persistent: true, contentType: "application/json" };
    const timestamp = Math.floor(Date.parse("2026-11-20T12:00:00Z") / 1000);
    channel.publish(exchange, "", BODY, { ...stated, timestamp, type: "order", headers: HEADERS });
  }
  await channel.waitForConfirms();
  await connection.close();
}

function rejections(message, queue) {
  const deaths = message.properties.headers["x-death"] ?? [];
  return deaths.find((one) => one.queue === queue && one.reason === "rejected")?.count ?? 0;
}

async function consume(connection, queue, parking, times) {
  const channel = await connection.createConfirmChannel();
  await channel.prefetch(1);
  await channel.consume(queue, async (message) => {
    const round = rejections(message, queue);
    const id = message.properties.messageId;
    if (round < Number(times)) channel.nack(message, false, false);
    else {
      const properties = message.properties;
      if (id.startsWith("bad") && !("delayboard-replay-id" in properties.headers)) {
        channel.sendToQueue(parking, message.content, properties);
        await channel.waitForConfirms();
      }
      channel.ack(message);
    }
    write({ id, round, ...shown(message) });
  });
  write({ ready: true });
  process.stdin.resume();
  process.stdin.on("end", () => connection.close());
}

async function main([action, url, ...rest]) {
  const connection = await amqp.connect(url);
  await { publish, consume }[action](connection, ...rest);
}

main(process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
