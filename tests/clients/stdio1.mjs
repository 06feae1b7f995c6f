// The TypeScript SDK, line 1, with a server that it starts as a program.
const { NODE_MODULES, MCP_COMMAND, MCP_CALLS } = process.env;
const { Client } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/index.js`);
const { StdioClientTransport } = await import(`${NODE_MODULES}/sdk1/dist/esm/client/stdio.js`);
const { ElicitRequestSchema } = await import(`${NODE_MODULES}/sdk1/dist/esm/types.js`);

const client = new Client({ name: 'stdio', version: '1' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => ({
  action: 'accept',
  content: { response: `to ${params.message}` },
}));
const [command, ...args] = JSON.parse(MCP_COMMAND);
await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: 'inherit' }));
console.log(`protocol=${client.getNegotiatedProtocolVersion?.() ?? 'unknown'}`);
console.log(`tools=${(await client.listTools()).tools.length}`);
let told = 0;
await client.callTool({ name: 'test_tool_with_progress', arguments: {} }, undefined, { onprogress: () => (told += 1) });
console.log(`progress=${told}`);
const answer = await client.callTool({ name: 'test_elicitation', arguments: { message: 'who' } });
console.log(`elicitation=${answer.content[0].text}`);
const enough = new AbortController();
await client
  .callTool({ name: 'test_slow', arguments: { ms: 60_000 } }, undefined, {
    signal: enough.signal,
    onprogress: () => enough.abort('enough'),
  })
  .then(() => { throw new Error('it was not cancelled'); }, () => {});
await client.ping();
console.log('cancelled=asked');
const times = [];
for (let call = 0; call < Number(MCP_CALLS); call += 1) {
  const began = process.hrtime.bigint();
  await client.callTool({ name: 'test_simple_text', arguments: {} });
  times.push(Number(process.hrtime.bigint() - began) / 1e3);
}
times.sort((a, b) => a - b);
console.log(`p50_us=${Math.round(times[times.length >> 1])}`);
await client.close();
