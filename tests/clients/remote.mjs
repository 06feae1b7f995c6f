// mcp-remote, which makes a stdio server of a URL; the client behind it is the TypeScript SDK.
const { NODE_MODULES, MCP_URL, MCP_TOKEN, CLIENT_NAME } = process.env;
const { Client } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/index.js`);
const { StdioClientTransport } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/stdio.js`);

const client = new Client({ name: CLIENT_NAME, version: '1' });
const args = [`${NODE_MODULES}/mcp-remote/dist/proxy.js`, MCP_URL, '--transport', 'http-only', '--header'];
args.push(`Authorization:Bearer ${MCP_TOKEN}`);
await client.connect(new StdioClientTransport({ command: process.execPath, args, env: process.env }));
console.log((await client.listTools()).tools.map((tool) => tool.name).join(' '));
const result = await client.callTool({ name: 'test_x_mcp_header', arguments: { region: 'eu', q: CLIENT_NAME } });
console.log(result.content[0].text);
await client.close();
