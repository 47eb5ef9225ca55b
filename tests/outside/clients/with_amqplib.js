// amqplib alone: a retry loop and a queue for each delay, as its users write them. A failed message
// is rejected, waits in the retry queue, and comes back to its exchange; x-death counts. What is
// given up is sent into the parking queue.

"use strict";

const amqp = require("amqplib");

const { DELAYED, fails, run, write } = require("./order");

async function main(order) {
  const queue = `${order.prefix}.orders`;
  const retry = `${order.prefix}.retry`;
  const parking = `${order.prefix}.parking`;
  const due = {};
  const connection = await amqp.connect(order.url);
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange(queue, "fanout");
  await channel.assertExchange(retry, "fanout");
  await channel.assertQueue(queue, { deadLetterExchange: retry });
  await channel.assertQueue(retry, { messageTtl: order.waitMs, deadLetterExchange: queue });
  await channel.assertQueue(parking);
  await channel.bindQueue(queue, queue, "");
  await channel.bindQueue(retry, retry, "");
  for (const wait of order.delaysMs) {
    await channel.assertQueue(`${order.prefix}.delay.${wait}`, {
      messageTtl: wait,
      deadLetterExchange: "",
      deadLetterRoutingKey: queue,
    });
  }

  function work(message) {
    const { messageId, headers } = message.properties;
    const deaths = headers["x-death"] ?? [];
    const failed = deaths.find((one) => one.queue === queue && one.reason === "rejected");
    const attempt = (failed?.count ?? 0) + 1;
    const kind = message.content.toString();
    write("attempt", messageId, attempt, due[messageId]);
    if (!fails(order, kind, attempt)) {
      channel.ack(message);
      write("done", messageId, attempt);
    } else if (attempt > order.rounds) {
      channel.sendToQueue(parking, message.content, message.properties);
      channel.ack(message);
      write("gave up", messageId, attempt);
    } else {
      due[messageId] = Date.now() + order.waitMs;
      channel.nack(message, false, false);
      write("retrying", messageId, attempt, due[messageId]);
    }
  }

  if (order.isConsuming) await channel.consume(queue, work);
  write("ready");
  for (const [number, kind] of order.atOnce.entries()) {
    const messageId = `order-${number}`;
    channel.publish(queue, "", Buffer.from(kind), { messageId, persistent: true });
    await channel.waitForConfirms();
    write("published", messageId);
  }
  for (const [number, wait] of order.delaysMs.entries()) {
    const messageId = `delayed-${number}`;
    due[messageId] = Date.now() + wait;
    const stated = { messageId, persistent: true };
    channel.sendToQueue(`${order.prefix}.delay.${wait}`, Buffer.from(DELAYED), stated);
    await channel.waitForConfirms();
    write("published", messageId, 0, due[messageId]);
  }
  return () => connection.close();
}

run(main);
