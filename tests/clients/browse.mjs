// What a person's browser does on the way through a sign-in: follows redirects and keeps cookies. Answers with the first
// address that begins with `until`, without going there; run by itself it goes on to the end.
export async function browse(address, until) {
  const cookies = new Map();
  let at = String(address);
  for (let step = 0; step < 20; step += 1) {
    if (until && at.startsWith(until)) return at;
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(at, { redirect: 'manual', headers: { cookie } });
    for (const line of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(line);
      if (value) cookies.set(name, value);
      else cookies.delete(name);
    }
    const next = answer.headers.get('location');
    if (!next) {
      if (until || !answer.ok) throw new Error(`${answer.status} at ${at}: ${(await answer.text()).slice(0, 500)}`);
      return at;
    }
    at = new URL(next, at).href;
  }
  throw new Error('redirected without end');
}

if (import.meta.filename === process.argv[1]) console.log(await browse(process.argv[2], process.argv[3]));
