-- A view on a view. One row may move all others, so everything is computed, and only what differs is written.
select rank() over (order by avg(delay)) as place, carrier, round(avg(delay), 1) as delay
from daily
group by carrier
