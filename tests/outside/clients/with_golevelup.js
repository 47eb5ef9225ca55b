// golevelup's module for NestJS: a subscriber with an errorHandler, and the queues of its module's
// configuration. A failed message is published into the delay exchange with `x-retry-count`, waits
// in the queue of the delay, and comes back to its exchange. What is given up is rejected (the
// NACK behaviour), and dead-lettered into the failed queue.
// Decorators are called by hand: this is no TypeScript.

"use strict";

require("reflect-metadata");
const { Module } = require("@nestjs/common");
const { NestFactory } = require("@nestjs/core");
const {
  AmqpConnection,
  RabbitMQModule,
  RabbitSubscribe,
  defaultNackErrorHandler,
} = require("@golevelup/nestjs-rabbitmq");

const { DELAYED, fails, run, write } = require("./order");

const COUNT = "x-retry-count";

class Orders {}
class Application {}

async function main(order) {
  const name = order.prefix;
  const due = {};
  let connection;

  Orders.prototype.work = ({ kind }, message) => {
    const { messageId, headers } = message.properties;
    const attempt = (headers[COUNT] ?? 0) + 1;
    write("attempt", messageId, attempt, due[messageId]);
    if (fails(order, kind, attempt)) throw new Error(`${kind} order`);
    write("done", messageId, attempt);
  };

  async function onError(channel, message, error) {
    const { messageId, headers } = message.properties;
    const attempt = (headers[COUNT] ?? 0) + 1;
    if (attempt > order.rounds) {
      defaultNackErrorHandler(channel, message, error);
      write("gave up", messageId, attempt);
      return;
    }
    const start = Date.now() + order.waitMs;
    await connection.publish(`${name}.delay`, String(order.waitMs), message.content, {
      ...message.properties,
      headers: { ...headers, [COUNT]: attempt },
    });
    channel.ack(message);
    due[messageId] = start;
    write("retrying", messageId, attempt, start);
  }

  const method = Object.getOwnPropertyDescriptor(Orders.prototype, "work");
  RabbitSubscribe({
    exchange: `${name}.orders`,
    routingKey: "order",
    queue: `${name}.orders`,
    queueOptions: { deadLetterExchange: `${name}.failed`, deadLetterRoutingKey: "order" },
    errorHandler: onError,
  })(Orders.prototype, "work", method);
  const module = RabbitMQModule.forRoot({
    uri: order.url,
    exchanges: ["orders", "delay", "failed"].map((one) => ({ name: `${name}.${one}`, type: "direct" })),
    queues: [
      ...[...new Set([order.waitMs, ...order.delaysMs])].map((wait) => ({
        name: `${name}.delay.${wait}`,
        exchange: `${name}.delay`,
        routingKey: String(wait),
        options: {
          messageTtl: wait,
          deadLetterExchange: `${name}.orders`,
          deadLetterRoutingKey: "order",
        },
      })),
      { name: `${name}.failed`, exchange: `${name}.failed`, routingKey: "order" },
    ],
    registerHandlers: order.isConsuming,
    defaultPublishOptions: { persistent: true },
    // Five seconds by default, which a busy machine may take.
    connectionInitOptions: { timeout: 60000 },
  });
  Module({ imports: [module], providers: [Orders] })(Application);
  const application = await NestFactory.createApplicationContext(Application, { logger: false });
  connection = application.get(AmqpConnection);
  write("ready");
  for (const [number, kind] of order.atOnce.entries()) {
    const messageId = `order-${number}`;
    await connection.publish(`${name}.orders`, "order", { kind }, { messageId, headers: {} });
    write("published", messageId);
  }
  for (const [number, wait] of order.delaysMs.entries()) {
    const messageId = `delayed-${number}`;
    due[messageId] = Date.now() + wait;
    const stated = { messageId, headers: {} };
    await connection.publish(`${name}.delay`, String(wait), { kind: DELAYED }, stated);
    write("published", messageId, 0, due[messageId]);
  }
  return () => application.close();
}

run(main);
