// The page of documents: says where this service is, and asks it what the reader wants to know.

for (const node of document.querySelectorAll('.base')) node.textContent = location.origin;

const key = document.getElementById('key');
key.hidden = false;
key.addEventListener('submit', (event) => event.preventDefault());

const MOST_SHOWN = 20_000;

async function ask(form) {
  const headers = { 'content-type': 'application/json' };
  if (key.elements.key.value) headers.authorization = `Bearer ${key.elements.key.value}`;
  const { method } = form.dataset;
  const address = new URL(form.elements.address.value, location.origin);
  if (address.origin !== location.origin) return 'Only this service is asked.';
  const answer = await fetch(address, { method, headers, body: method === 'POST' ? form.elements.body.value : undefined });
  const text = await answer.text();
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // What is no JSON is shown as it is.
  }
  return `${answer.status} ${answer.statusText}\n${shown.slice(0, MOST_SHOWN)}`;
}

for (const form of document.querySelectorAll('form.try')) {
  form.hidden = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const out = form.querySelector('pre');
    out.hidden = false;
    out.textContent = '…';
    out.textContent = await ask(form).catch((problem) => `The service did not answer: ${problem.message}`);
  });
}
