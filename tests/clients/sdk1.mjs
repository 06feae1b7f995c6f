// The TypeScript SDK, line 1.
const { NODE_MODULES, MCP_URL, MCP_TOKEN, CLIENT_NAME } = process.env;
const { Client } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/streamableHttp.js`);

const client = new Client({ name: CLIENT_NAME, version: '1' });
const headers = { Authorization: `Bearer ${MCP_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(MCP_URL), { requestInit: { headers } });
await client.connect(transport);
console.log(`protocol=${transport.protocolVersion}`);
console.log((await client.listTools()).tools.map((tool) => tool.name).join(' '));
const result = await client.callTool({ name: 'test_x_mcp_header', arguments: { region: 'eu', q: CLIENT_NAME } });
console.log(result.content[0].text);
await transport.terminateSession();
await client.close();
