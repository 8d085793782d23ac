// What a page does beside being read, which it can be without this: the columns sort, names are filtered, and as long
// as somebody looks /metrics is asked how the server is.
'use strict'
const at = id => document.getElementById(id)
const made = (name, ...inside) => {
  const element = document.createElement(name)
  element.append(...inside)
  return element
}

function listing(table) {
  const body = table.tBodies[table.tBodies.length - 1]
  const rows = [...body.rows]
  const name = row => row.cells[0].textContent
  const by = Intl.Collator(undefined, { numeric: true }).compare
  const orders = [
    (a, b) => by(name(a), name(b)),
    (a, b) => (parseInt(a.cells[1].title) || 0) - (parseInt(b.cells[1].title) || 0),
    (a, b) => by(a.querySelector('time')?.dateTime ?? '', b.querySelector('time')?.dateTime ?? ''),
  ]
  const heads = [...table.tHead.rows[0].cells]
  // The last one may have links in it, and no order.
  heads.slice(0, orders.length).forEach((head, column) => {
    const button = made('button', ...head.childNodes)
    head.append(button)
    button.onclick = () => {
      const sign = head.ariaSort === 'ascending' ? -1 : 1
      for (const other of heads) other.removeAttribute('aria-sort')
      head.setAttribute('aria-sort', sign > 0 ? 'ascending' : 'descending')
      // Directories stay first.
      const isDir = row => name(row).endsWith('/')
      rows.sort((a, b) => isDir(b) - isDir(a) || sign * orders[column](a, b))
      body.append(...rows)
    }
  })
  const input = made('input')
  input.type = 'search'
  const said = made('span')
  said.setAttribute('role', 'status')
  said.className = 'soft'
  input.oninput = () => {
    const wanted = input.value.toLowerCase()
    for (const row of rows) row.hidden = !name(row).toLowerCase().includes(wanted)
    const shown = rows.filter(row => !row.hidden).length
    said.textContent = wanted ? ` ${shown} of ${rows.length}` : ''
  }
  table.before(made('p', made('label', 'Filter by name ', input), said))
}

// The lines of Prometheus' text format.
function figures(text) {
  const all = []
  for (const line of text.split('\n')) {
    const [, name, rest, value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
    if (!name) continue
    const labels = {}
    for (const [, label, text] of (rest ?? '').matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) {
      labels[label] = text.replace(/\\(.)/g, (_, c) => c === 'n' ? '\n' : c)
    }
    all.push({ name: name.replace('ninefold_', ''), labels, value: Number(value) })
  }
  return all
}

const scaled = (number, step, units) => {
  let at = 0
  for (; number >= step && at < units.length - 1; at++) number /= step
  return `${number.toFixed(at && number < 100 ? 1 : 0)} ${units[at]}`
}
const bytes = number => scaled(number, 1024, ['B', 'KiB', 'MiB', 'GiB'])
const time = seconds => scaled(seconds * 1e6, 1000, ['µs', 'ms', 's'])

function show(all, before) {
  const of = name => all.filter(one => one.name === name)
  const sum = name => of(name).reduce((sum, one) => sum + one.value, 0)
  const now = { when: performance.now(), sent: sum('http_sent_bytes_total'), answers: sum('http_responses_total') }
  const rate = key => before && Math.max(0, (now[key] - before[key]) * 1000 / (now.when - before.when))
  if (before) {
    at('rate').textContent = `${bytes(rate('sent'))}/s`
    at('answers').textContent = `${rate('answers').toFixed(1)}/s`
  }
  at('open').textContent = sum('http_connections')
  const servers = of('mux_server_info').map(({ labels }) => {
    const value = name => of(`mux_server_${name}`).find(one => one.labels.server === labels.server)?.value ?? 0
    const rtt = value('connections') ? value('rtt_seconds') ? time(value('rtt_seconds')) : '–' : labels.away || 'away'
    const row = made('tr', made('th', labels.server), made('td', rtt), made('td', `${value('in_flight')}`))
    row.cells[0].scope = 'row'
    row.cells[1].className = row.cells[2].className = 'n'
    return row
  })
  at('servers').tBodies[0].replaceChildren(...servers)
  at('servers').hidden = !servers.length
  return now
}

let before, turn = 0
async function look(mine = ++turn) {
  let said = ''
  try {
    const answer = await fetch('/metrics?live', { cache: 'no-store', signal: AbortSignal.timeout(10000) })
    if (!answer.ok) throw answer.status
    const all = figures(await answer.text())
    if (mine !== turn) return
    before = show(all, before)
    at('live').hidden = false
  } catch {
    said = 'The server does not answer; these figures are old.'
  }
  // Somebody has looked away and back meanwhile.
  if (mine !== turn) return
  // What is read aloud is said once.
  if (at('said').textContent !== said) at('said').textContent = said
  if (document.visibilityState === 'visible') setTimeout(() => mine === turn && look(mine), 2000)
}
document.onvisibilitychange = () => {
  turn++
  if (document.visibilityState === 'visible') {
    before = undefined
    look()
  }
}

if (at('files').tBodies[1]?.rows.length > 1) listing(at('files'))
if (document.visibilityState === 'visible') look()
