// A click on a column's heading sorts a table of more than five rows, by number where the cells begin with one.
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
// A table of many rows gets a field: rows that have all of its words stay.
for (const table of document.querySelectorAll('.md-typeset table:not([class])')) {
  const rows = [...table.tBodies[0].rows]
  if (rows.length <= 30) continue
  const field = document.createElement('input')
  field.type = 'search'
  field.className = 'rows'
  field.placeholder = `Filter ${rows.length} rows`
  field.setAttribute('aria-label', field.placeholder)
  field.addEventListener('input', () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
    for (const row of rows) {
      const text = row.textContent.toLowerCase()
      row.classList.toggle('filtered', !words.every((word) => text.includes(word)))
    }
  })
  table.before(field)
}
// A name in the first column may break behind these signs, which leaves room for the second. In a table of many rows or of
// models, a button copies it: the theme listens for the attribute.
for (const code of document.querySelectorAll('.md-typeset td:first-child > code')) {
  const name = code.textContent
  if (name.length > 60) code.style.whiteSpace = 'normal' // a call
  const parts = name.split(/(?<=[_./])/)
  code.replaceChildren(...parts.flatMap((part) => [part, document.createElement('wbr')]))
  if (code.closest('tbody').rows.length <= 30 && !code.closest('.models')) continue
  const button = document.createElement('button')
  button.className = 'copy'
  button.dataset.clipboardText = name
  button.title = `Copy ${name}`
  code.after(' ', button)
}
// On a phone, a table of at most 30 rows with words, or of at most three, shows its rows as cards if it is wider than the
// page or has tall cells.
{
  const narrow = matchMedia('(max-width: 44.9em)')
  const stack = () => {
    for (const table of document.querySelectorAll('.md-typeset table:not([class]), .md-typeset table.stacked')) {
      table.removeAttribute('class') // the theme styles tables without one
      const heads = [...(table.tHead?.rows[0].cells ?? [])].map((cell) => cell.innerText.trim())
      const rows = [...table.tBodies[0].rows]
      const wide = table.scrollWidth > table.closest('article').clientWidth
      const tall = rows.some((row) => row.offsetHeight > 100)
      const words = rows.some((row) => [...row.cells].some((cell) => cell.innerText.length > 24))
      const numbers = table.querySelector('td[style*="right"]') !== null
      if (!narrow.matches || !(wide || tall) || (numbers && !words && rows.length > 3) || rows.length > 30) continue
      for (const row of rows) {
        for (const [column, cell] of [...row.cells].entries()) {
          cell.dataset.column = heads[column]
          const text = cell.textContent.trim()
          cell.classList.toggle('empty', text === '')
          cell.classList.toggle('small', text !== '' && heads[column].length + text.length <= 24)
        }
      }
      table.classList.add('stacked')
    }
  }
  narrow.addEventListener('change', stack)
  document.addEventListener('toggle', stack, true) // a table that is not shown has no width
  stack()
}
