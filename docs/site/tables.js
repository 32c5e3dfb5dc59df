// A click on a column's heading sorts a table of more than five rows, by number where the cells have one.
{
  const key = (row, column) => {
    const text = row.cells[column].innerText.trim().replace(/,/g, '')
    const number = parseFloat(text)
    return isNaN(number) ? text : number
  }
  const order = (a, b) => {
    if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1
    return typeof a === 'number' ? b - a : a.localeCompare(b)
  }
  for (const table of document.querySelectorAll('.md-typeset table')) {
    if (!table.tHead || table.tBodies[0].rows.length < 6) continue
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      if (head.tagName !== 'TH') continue
      head.tabIndex = 0
      head.title = 'Sort'
      const sort = () => {
        const up = head.getAttribute('aria-sort') === 'descending'
        for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort')
        head.setAttribute('aria-sort', up ? 'ascending' : 'descending')
        const rows = [...table.tBodies[0].rows].sort((a, b) => order(key(a, column), key(b, column)) * (up ? -1 : 1))
        table.tBodies[0].append(...rows)
      }
      head.addEventListener('click', sort)
      head.addEventListener('keydown', (event) => event.key === 'Enter' && sort())
    }
  }
}
// A table with a column `status` gets a choice of its rows. At first, those with a score are shown.
for (const table of document.querySelectorAll('.md-typeset table')) {
  const heads = [...(table.tHead?.rows[0].cells ?? [])].map((cell) => cell.innerText.trim())
  const column = heads.indexOf('status')
  if (column < 0) continue
  const status = (row) => row.cells[column].innerText.split(/[:;]/)[0].trim()
  const rows = [...table.tBodies[0].rows]
  const choice = document.createElement('select')
  choice.setAttribute('aria-label', 'Status')
  choice.className = 'status'
  const scored = (row) => status(row) !== 'not trained'
  const count = rows.filter(scored).length
  if (count && count < rows.length) choice.append(new Option(`has a score (${count} of ${rows.length})`, 'scored'))
  choice.append(new Option('every status', ''))
  for (const value of new Set(rows.map(status))) choice.append(new Option(value, value))
  const show = () => {
    for (const row of rows) row.hidden = !(choice.value === 'scored' ? scored(row) : ['', status(row)].includes(choice.value))
  }
  choice.addEventListener('change', show)
  show()
  table.before(choice)
}
// A table of many rows gets a field: rows that have all of its words stay.
for (const table of document.querySelectorAll('.md-typeset table:not([class])')) {
  const rows = [...(table.tBodies[0]?.rows ?? [])]
  if (rows.length <= 30) continue
  const field = document.createElement('input')
  field.type = 'search'
  field.className = 'rows'
  field.placeholder = `Filter ${rows.length} rows`
  field.setAttribute('aria-label', field.placeholder)
  field.addEventListener('input', () => {
    const words = field.value.toLowerCase().split(/\s+/)
    for (const row of rows) {
      const text = row.innerText.toLowerCase()
      row.classList.toggle('filtered', !words.every((word) => text.includes(word)))
    }
  })
  table.before(field)
}
// On a phone, a table of words that is wider than the page, or whose cells are tall, shows its rows as cards; short cells
// stand side by side.
// One of many rows stays a table, but for that of a status, most of whose rows are hidden.
{
  const narrow = matchMedia('(max-width: 44.9em)')
  const stack = () => {
    for (const table of document.querySelectorAll('.md-typeset table:not([class]), .md-typeset table.stacked')) {
      table.classList.remove('stacked')
      if (!table.className) table.removeAttribute('class') // the theme styles tables without one
      const heads = [...(table.tHead?.rows[0].cells ?? [])].map((cell) => cell.innerText.trim())
      const rows = [...table.tBodies[0].rows]
      const wide = table.scrollWidth > table.closest('article').clientWidth
      const tall = rows.some((row) => row.offsetHeight > 140)
      const words = rows.some((row) => [...row.cells].some((cell) => cell.innerText.length > 24))
      if (!narrow.matches || !(wide || tall) || !words || (rows.length > 12 && !heads.includes('status'))) continue
      for (const row of rows) {
        for (const [column, cell] of [...row.cells].entries()) {
          cell.dataset.column = heads[column]
          const text = cell.textContent.trim()
          cell.classList.toggle('empty', text === '')
          cell.classList.toggle('small', text.length <= 12)
        }
      }
      table.classList.add('stacked')
    }
  }
  narrow.addEventListener('change', stack)
  stack()
}
