// The TypeScript SDK, from a 401 to a tool's answer: discovery, registration, sign-in, token.
import { browse } from './browse.mjs';
const { NODE_MODULES, MCP_URL, CLIENT_NAME } = process.env;
const { Client } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/streamableHttp.js`);
const { UnauthorizedError } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/auth.js`);

const redirectUrl = 'http://127.0.0.1:1/callback';
const known = {};
const authProvider = {
  redirectUrl,
  clientMetadata: {
    client_name: CLIENT_NAME,
    redirect_uris: [redirectUrl],
    grant_types: ['authorization_code'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: () => known.client,
  saveClientInformation: (client) => { known.client = client; },
  tokens: () => known.tokens,
  saveTokens: (tokens) => { known.tokens = tokens; },
  codeVerifier: () => known.verifier,
  saveCodeVerifier: (verifier) => { known.verifier = verifier; },
  redirectToAuthorization: async (url) => { known.callback = new URL(await browse(url, redirectUrl)); },
};

const client = new Client({ name: CLIENT_NAME, version: '1' });
const url = new URL(MCP_URL);
const first = new StreamableHTTPClientTransport(url, { authProvider });
try {
  await client.connect(first);
  throw new Error('let in without a token');
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
}
await first.finishAuth(known.callback.searchParams.get('code'));
await client.connect(new StreamableHTTPClientTransport(url, { authProvider }));
console.log((await client.listTools()).tools.map((tool) => tool.name).join(' '));
const result = await client.callTool({ name: 'test_x_mcp_header', arguments: { region: 'eu', q: CLIENT_NAME } });
console.log(result.content[0].text);
await client.close();
