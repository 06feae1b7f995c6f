// The TypeScript SDK, line 2. Argument: how it connects.
const { NODE_MODULES, MCP_URL, MCP_TOKEN, CLIENT_NAME } = process.env;
const { Client, StreamableHTTPClientTransport } = await import(
  `${NODE_MODULES}/@modelcontextprotocol/client/dist/index.mjs`
);

const client = new Client({ name: CLIENT_NAME, version: '1' }, { versionNegotiation: { mode: process.argv[2] } });
const headers = { Authorization: `Bearer ${MCP_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(MCP_URL), { requestInit: { headers } });
await client.connect(transport);
console.log(`protocol=${client.getNegotiatedProtocolVersion()}`);
console.log((await client.listTools()).tools.map((tool) => tool.name).join(' '));
const result = await client.callTool({ name: 'test_x_mcp_header', arguments: { region: 'eu', q: CLIENT_NAME } });
console.log(result.content[0].text);
await client.close();
