-- A view on a view. One row may change all ranks, so everything is computed, and only rows that differ are written.
select rank() over (order by avg(delay)) as place, carrier, round(avg(delay), 1) as delay
from daily
group by carrier
