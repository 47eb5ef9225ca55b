// A certified OpenID Connect provider for tests: every name signs in, with the groups of its argument.
// Arguments: the address of the site, and JSON of groups by name. A line of JSON on standard input
// replaces the groups. Prints its issuer as JSON.
"use strict";

// Standard output is for our lines: the library notes there that this is no production.
console.info = console.warn = () => {};

const { createServer } = require("node:http");
const { createInterface } = require("node:readline");
const { Provider } = require("oidc-provider");

const [site, text] = process.argv.slice(2);
let groups = JSON.parse(text);

const server = createServer((request, response) => server.answer(request, response));
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "delayboard",
        client_secret: "a secret of the test",
        redirect_uris: [`${site}/login/provider/callback/`],
        post_logout_redirect_uris: [`${site}/login/`],
      },
    ],
    pkce: { required: () => true },
    claims: { profile: ["preferred_username", "name", "groups"], email: ["email"] },
    findAccount: (_, name) => ({
      accountId: name,
      claims: () => ({
        sub: name,
        preferred_username: name,
        name,
        email: `${name}@example.com`,
        ...(groups[name] && { groups: groups[name] }),
      }),
    }),
    cookies: { keys: ["a key of the test"] },
  });
  server.answer = provider.callback();
  console.log(JSON.stringify({ issuer }));
});
createInterface({ input: process.stdin }).on("line", (line) => {
  groups = JSON.parse(line);
  console.log(JSON.stringify({ groups }));
});
